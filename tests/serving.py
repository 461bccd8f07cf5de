"""Finished runs of random networks, made in a moment: what is served matters, not what was learnt."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atoll.config import NetworkConfig, RunConfig
from atoll.models import checkpoint
from atoll.runs import Run, Stage, write_json
from atoll.runs.records import (
    Contents,
    ExpertContents,
    PartitionContents,
    RouterContents,
    StartContents,
    TextFormat,
)
from atoll.runs.shared import SharedNetworkContents

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "apple", "cat"]
NETWORK = NetworkConfig(width=16, depth=1, heads=2, patch=(4, 4))


def word_tokenizer(words: Sequence[str]) -> Any:
    """One token a word, between [CLS] and [SEP]; the first four words are the special ones."""
    import tokenizers
    import transformers

    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, "[UNK]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    raw.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[SEP]",
        model_max_length=16,
    )


def text_encoder(folder: Path) -> Path:
    """A tiny text encoder with random weights and a vocabulary of four words."""
    import transformers

    tokenizer = word_tokenizer(WORDS)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    tokenizer.save_pretrained(folder)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def tiny_clip(folder: Path, words: dict[str, int], pixels: int, patch: int, width: int) -> Path:
    """A tiny CLIP with random weights, which looks at squares of so many pixels."""
    import transformers

    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config={**size, **words},
        vision_config={**size, "image_size": pixels, "patch_size": patch},
        projection_dim=width,
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    transformers.CLIPImageProcessor(
        size={"shortest_edge": pixels}, crop_size={"height": pixels, "width": pixels}
    ).save_pretrained(folder)
    return folder


def served(
    folder: Path,
    kind: str = "none",
    text: Path | None = None,
    shape: tuple[int, ...] = (3, 8, 8),
    **sample: Any,
) -> Run:
    """A finished run of two experts and a router over pictures of 8x8 RGB, with weights that do something."""
    config = RunConfig.model_validate(
        {
            "name": folder.name,
            "data": {"source": "somewhere/private/pictures"},
            "encode": {"text": None if text is None else str(text), "text_tokens": 6},
            "partition": {"clusters": 2},
            "condition": {"kind": kind},
            "sample": {
                "num": 5,
                "steps": 3,
                "batch": 2,
                "strategy": "full",
                "precision": "float32",
                **sample,
            },
        }
    )
    run = Run(folder, config)
    write_json(folder / "resolved.json", config.model_dump(mode="json"))
    contents = PartitionContents(
        kind="image" if len(shape) == 3 else "series",
        shape=shape,
        dtype="uint8" if len(shape) == 3 else "float32",
        mean=(127.5,) * shape[0],
        std=(127.5,) * shape[0],
        group=500,
        class_names=("boot", "shirt", "bag") if kind == "class" else (),
        method="features",
        features="pixels",
        text=None if text is None else TextFormat(model=str(text), tokens=6, width=8),
        classes=3 if kind == "class" else 0,
        clusters=2,
        sizes=(30, 10),
        priors=(0.75, 0.25),
        rows=40,
        labels=((12, 18, 0), (4, 0, 6)) if kind == "class" else None,
    )
    finish(run.partition, contents)
    for k in range(2):
        network(run.expert(k), kind, "expert", seed=k, shape=shape)
        (run.expert(k).path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.25}\n')
    network(run.router, kind, "router", seed=7, shape=shape)
    return run


def finish(stage: Stage, contents: Contents, files: tuple[str, ...] = ()) -> None:
    stage.path.mkdir(parents=True, exist_ok=True)
    stage.finish({}, list(files), contents)


def network(stage: Stage, kind: str, role: str, seed: int, shape: tuple[int, ...] = (3, 8, 8)) -> None:
    blueprint = checkpoint.Blueprint.model_validate(
        {
            "role": "router" if role == "router" else "expert",
            "network": NETWORK.model_copy(update={"text": "pooled", "patch": (4,) * (len(shape) - 1)}),
            "shape": shape,
            "condition": kind,
            "classes": 3 if kind == "class" else 0,
            "text": 8 if kind == "text" else 0,
            "clusters": 2,
        }
    )
    model = blueprint.build()
    source = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(value.shape, generator=source) * 0.3 for name, value in model.state_dict().items()
    }
    stage.path.mkdir(parents=True, exist_ok=True)
    checkpoint.write_tensors(stage.path / checkpoint.WEIGHTS, tensors)
    write_json(stage.path / checkpoint.CONFIG, blueprint.model_dump(mode="json"))
    shared = partial(SharedNetworkContents, below=0.6)
    kinds = {
        "expert": ExpertContents,
        "router": RouterContents,
        "start": StartContents,
        "shared": shared,
    }
    finish(stage, kinds[role](steps=1, rows=20), (checkpoint.WEIGHTS, checkpoint.CONFIG))


def same(left: Any, right: Any) -> bool:
    """Equal bit for bit."""
    return np.asarray(left).tobytes() == np.asarray(right).tobytes()
