"""What may be told of a run to everybody: its settings without places, buckets and accounts."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.config import AdapterConfig, ExpertConfig, LaunchConfig, OverrideConfig, RunConfig
from atoll.config.adapter import START
from atoll.data.hub import HUB
from atoll.runs.records import (
    FewStepContents,
    ImportedContents,
    NetworkContents,
    StartContents,
    StudentContents,
)

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
MODELS = ("features", "text", "autoencoder")
"""Keys of [encode] that name a model: on the Hub, or in a folder."""


def config(config: RunConfig) -> RunConfig:
    """The config without the places of a machine, and without how its jobs were launched."""
    encode = {key: model(getattr(config.encode, key)) for key in MODELS}
    partition: dict[str, Any] = {"file": None, "like": None}
    if config.partition.method == "file":
        partition["method"] = "features"
    judged: dict[str, Any] = {"monolith": None, "lpips": None, "clip": model(config.evaluate.clip)}
    judged["features"] = tuple(name for name in config.evaluate.features if model(name) == name)
    return config.model_copy(
        update={
            "data": config.data.model_copy(update={"source": source(config.data.source)}),
            "encode": config.encode.model_copy(update=encode),
            "partition": config.partition.model_copy(update=partition),
            "expert": _expert(config.expert),
            "evaluate": config.evaluate.model_copy(update=judged),
            "launch": LaunchConfig(),
        }
    )


def source(name: str) -> str:
    """Where samples came from: a word or a dataset of the Hub as it is, of anything else the last part."""
    return name if _on_hub(name) else _last(name)


def model(name: str | None) -> str | None:
    """A model of the Hub as it is; of a folder or an address only the last part."""
    if name is None or _on_hub(name) or (HUB_NAME.fullmatch(name) and _on_hub(f"{HUB}{name}")):
        return name
    return _last(name)


def _on_hub(name: str) -> bool:
    """Whether it is one of the Hub's, and no folder of this machine, which the Hub's libraries read too."""
    rest = name.removeprefix(HUB)
    return name.startswith(HUB) and not rest.startswith(("/", ".", "~")) and not Path(rest).exists()


def contents(contents: NetworkContents) -> NetworkContents:
    """What a network says of itself: how long it was trained and on how much, not from what and where."""
    private: dict[str, object] = {"recipe": ""} if isinstance(contents, ImportedContents) else {}
    if isinstance(contents, StartContents):
        private = {"clusters": ()}
    if isinstance(contents, StudentContents | FewStepContents):
        private = {"alone": None}
    return contents.model_copy(update=private)


def _last(name: str) -> str:
    return name.rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1]


def _expert(expert: ExpertConfig) -> ExpertConfig:
    overrides = tuple(
        OverrideConfig.model_validate({**override.model_dump(), **_start(override.model_extra or {})})
        for override in expert.override
    )
    adapter = None if expert.adapter is None else expert.adapter.model_dump()
    own = _start({"init": expert.init, "adapter": adapter})
    if "adapter" in own:
        own["adapter"] = AdapterConfig.model_validate(own["adapter"])
    return expert.model_copy(update={**own, "override": overrides})


def _start(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The name of what an expert started from, if it did: that there was one is part of what it is."""
    init, adapter = settings.get("init"), settings.get("adapter")
    names: dict[str, Any] = {} if init is None else {"init": _last(init)}
    if isinstance(adapter, Mapping) and isinstance(adapter.get("base"), str):
        names["adapter"] = {**adapter, "base": _base(adapter["base"])}
    return names


def _base(name: str) -> str:
    """The name of an adapter's base, which is never mistaken for the run's own start."""
    last = source(name)
    return f"{last}-network" if last == START != name else last
