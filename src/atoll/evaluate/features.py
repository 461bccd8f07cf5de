"""Features by name: what of a sample counts when sets of samples are compared."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atoll import devices
from atoll.config import FEATURES, EncodeConfig
from atoll.data.borrowed import loading
from atoll.data.features import colour_frames, open_features, pixel_features
from atoll.data.values import standardise
from atoll.errors import ConfigError, DataError
from atoll.evaluate import classifier, distances
from atoll.evaluate.reference import Real, as_seen
from atoll.models.checkpoint import read_tensors, write_tensors
from atoll.runs import digest, replacing
from atoll.runs.records import SampleFormat

BATCH = 250
CLASSIFIER, PIXELS, INCEPTION = FEATURES


class Space:
    """One kind of features: samples in, rows out, and what the data's are."""

    def __init__(
        self, name: str, see: Callable[[Tensor], Tensor], real: Real, folder: Path, about: dict[str, Any]
    ) -> None:
        self.name, self.about = name, about
        self._see, self._real, self._folder = see, real, folder
        self._reference: Tensor | None = None

    @torch.inference_mode()
    def of(self, x_0: Tensor) -> Tensor:
        """Features of samples as networks make them."""
        contents = self._real.contents
        return torch.cat(
            [self._see(as_seen(part, contents).cpu()) for part in distances.in_parts(x_0, BATCH)]
        ).float()

    @property
    def reference(self) -> Tensor:
        """Features of the data, computed once and kept in a file."""
        if self._reference is None:
            key = digest([self._real.name, self.name, self.about])[:16]
            path = self._folder / f"reference-{key}.safetensors"
            if not path.is_file():
                features = self._of_stored()
                with replacing(path) as beside:
                    write_tensors(beside, {"features": features})
            self._reference = read_tensors(path)["features"]
        return self._reference

    @torch.inference_mode()
    def _of_stored(self) -> Tensor:
        parts = distances.in_parts(self._real.stored, BATCH)
        return torch.cat([self._see(seen(part, self._real.contents)) for part in parts]).float().contiguous()

    @property
    def distance_name(self) -> str:
        """What the Fréchet distance on these features is called; only Inception's is FID."""
        return "FID" if self.name == INCEPTION else f"Fréchet distance, {self.name}"


def seen(stored: Tensor, contents: SampleFormat) -> Tensor:
    """Data at rest as they are looked at: latents through their autoencoder."""
    if contents.autoencoder is None:
        if stored.dtype == torch.uint8 and contents.mean[0] == 127.5:
            return stored
        if contents.kind != "image":
            return stored.float()
    return as_seen(standardise(stored, contents), contents)


def default_names(real: Real) -> tuple[str, ...]:
    """The classifier where there are labels enough, else pixels: both need nothing."""
    return (CLASSIFIER,) if classifier.can_learn(real) else (PIXELS,)


def open_space(name: str, real: Real, folder: Path, device: str = "auto") -> Space:
    """The features of this name, with what is kept of them in a folder."""
    about: dict[str, Any] = {}
    if name == CLASSIFIER:
        network, about["accuracy"] = classifier.trained(real, _everything_seen(real), folder)
        return Space(
            name, lambda v: network.features(classifier.standard(v, real.contents)), real, folder, about
        )
    if name == PIXELS:
        return Space(
            name, lambda v: pixel_features(classifier.standard(v, real.contents)), real, folder, about
        )
    if name == INCEPTION:
        return Space(name, inception(device), real, folder, about)
    kind = "image" if real.contents.autoencoder is not None else real.contents.kind
    # As the network makes them: distances in print (FD-DINOv2) are on features of any length.
    see = open_features(EncodeConfig(features=name, device=device, precision="float32"), kind, unit=False)
    return Space(name, see, real, folder, {"unit_length": False})


def predict(real: Real, folder: Path, x_0: Tensor) -> Tensor:
    """The class of each sample as the classifier sees it."""
    network, _ = classifier.trained(real, _everything_seen(real), folder)
    with torch.inference_mode():
        parts = [
            network(classifier.standard(as_seen(p, real.contents).cpu(), real.contents))
            for p in distances.in_parts(x_0, BATCH)
        ]
    return torch.cat(parts).argmax(1)


def _everything_seen(real: Real) -> Tensor:
    if real.contents.autoencoder is None:
        return seen(real.stored, real.contents)
    return torch.cat([seen(part, real.contents) for part in distances.in_parts(real.stored, BATCH)])


def inception(device: str) -> Callable[[Tensor], Tensor]:
    """The 2048 features of FID, by torch-fidelity, whose weights are those of the reference."""
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import (  # noqa: PLC0415 - of the extra fid
            FeatureExtractorInceptionV3,
        )
    except ImportError:
        raise ConfigError(
            "evaluate.features 'inception' needs torch-fidelity and the torchvision of your torch; "
            "pip install 'atoll[fid]', or use 'classifier'"
        ) from None
    where = devices.pick(device)
    with loading("evaluate.features 'inception'"):
        network = FeatureExtractorInceptionV3("inception-v3-compat", ["2048"]).to(where)

    def see(values: Tensor) -> Tensor:
        if values.ndim not in (4, 5):
            raise DataError("evaluate.features 'inception' sees pictures only; use 'pixels'")
        return network(colour_frames(values).to(where))[0].cpu()

    return see
