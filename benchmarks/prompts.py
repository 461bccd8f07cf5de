"""Whether prompts are heard: how often a sample looks like its prompt's group, against chance and no prompt.

Of captions that were trained on, some are asked for. The training picture nearest to each sample, by
features, has a group (food, animals, …); how often it is the group of the prompt is compared with how often
a training picture drawn by lot would have it, and with the same samples when nothing is told.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import atoll
from atoll.config import EncodeConfig
from atoll.data import features, store
from atoll.runs.records import SampleFormat
from atoll.sampling.opening import open_run
from atoll.sampling.sampler import Sampler
from benchmarks._shown import show

COMPONENTS = 64
"""Principal components of pixels to which distances are measured."""


def main() -> None:
    options = arguments()
    if not (options.run / "resolved.json").is_file():
        found: dict[str, Any] = {"ratios": {}, "detail": {"skipped": f"{options.run} is not a run"}}
    else:
        found = measure(options)
    found = {"benchmark": "prompts", **found}
    show(found, options.json)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/emoji"))
    parser.add_argument("--source", type=Path, default=Path("emoji_32.npz"))
    parser.add_argument("--features", default="pixels", help="pixels, or what encode.features takes")
    parser.add_argument("--captions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    with np.load(options.source, allow_pickle=False) as file:
        images, captions, groups = (file[name] for name in ("images", "captions", "groups"))
    chosen = np.random.default_rng(options.seed).choice(len(captions), options.captions, replace=False)
    wanted = groups[chosen]
    chance = float(np.mean([(groups == group).mean() for group in wanted]))
    look = looking(images, options.features)
    ensemble, contents = atoll.load(options.run), open_run(options.run).partition.contents
    told = nearest(ensemble, contents, look, options.seed, captions[chosen].tolist())
    silent = nearest(ensemble, contents, look, options.seed, None, len(chosen))
    hit, dropped = float((groups[told] == wanted).mean()), float((groups[silent] == wanted).mean())
    return {
        "ratios": {
            "chance, in nearest pictures of the prompt's group": hit / chance,
            "the same without the prompt": hit / max(dropped, 1 / len(chosen)),
        },
        "detail": {
            "captions": len(chosen),
            "features": options.features,
            "chance": chance,
            "with the prompt": hit,
            "with the prompt, times chance": hit / chance,
            "without the prompt": dropped,
            "without the prompt, times chance": dropped / chance,
            "nearest picture is the prompt's own": float((told == chosen).mean()),
            "strategy": ensemble.defaults.strategy,
            "guidance": ensemble.defaults.guidance,
            "steps": ensemble.defaults.steps,
        },
    }


def looking(images: NDArray[np.uint8], name: str) -> Any:
    """A function from pictures (n, height, width, channels) to the number of the nearest training picture."""
    encode = features.open_features(EncodeConfig(features=name, device="cpu"), "image")

    def describe(pictures: NDArray[np.uint8]) -> Tensor:
        values = torch.from_numpy(np.ascontiguousarray(pictures)).movedim(-1, 1)
        return torch.cat([torch.as_tensor(encode(part)).float() for part in values.split(64)])

    known = describe(images)
    mean = known.mean(0)
    if name == "pixels":
        axes = torch.linalg.svd(known - mean, full_matrices=False)[2][:COMPONENTS].T
    else:
        axes = torch.eye(known.shape[1])
    known = (known - mean) @ axes
    if name != "pixels":
        known = torch.nn.functional.normalize(known)

    def look(pictures: NDArray[np.uint8]) -> NDArray[np.int64]:
        seen = (describe(pictures) - mean) @ axes
        if name != "pixels":
            seen = torch.nn.functional.normalize(seen)
        return torch.cdist(seen, known).argmin(1).numpy()

    return look


def nearest(
    ensemble: Sampler,
    contents: SampleFormat,
    look: Any,
    seed: int,
    prompts: list[str] | None,
    num: int | None = None,
) -> NDArray[np.int64]:
    """The nearest training picture of a sample of each prompt, or of as many that are told nothing."""
    x_0 = ensemble.sample(num or len(prompts or ()), prompt=prompts, prompts=(), seed=seed)
    answer: NDArray[np.int64] = look(store.to_pixels(x_0, contents))
    return answer


if __name__ == "__main__":
    main()
