"""An exported run in diffusers: the ensemble as a component, and the pipeline that samples it."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import diffusers
import numpy as np
import torch
from diffusers import DiffusionPipeline, ImagePipelineOutput, ModelMixin
from PIL import Image
from torch import Tensor

from atoll import devices
from atoll.data.values import to_values
from atoll.errors import ConfigError
from atoll.runs import read_json, write_json
from atoll.runs.records import SampleFormat
from atoll.sampling.gallery import to_pixels
from atoll.sampling.opening import ENSEMBLE, INDEX, contents_of, exported_folder, open_run, open_run_model
from atoll.sampling.sampler import Sampler

SOLVERS = {
    "FlowMatchEulerDiscreteScheduler": "euler",
    "FlowMatchHeunDiscreteScheduler": "heun",
    "DPMSolverMultistepScheduler": "dpm++",
}
"""Which of our solvers a scheduler of diffusers stands for."""


class AtollEnsemble(ModelMixin):  # type: ignore[misc]
    """Experts and router as one component; its folder is a run without its data."""

    def __init__(self, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None) -> None:
        """Open the folder; without a type its networks compute as its recipe says, by default as is fast."""
        super().__init__()
        self.folder, self.precision = folder, _precision(dtype)
        self.contents = contents_of(open_run(folder))
        self.sampler: Sampler = open_run_model(open_run(folder), device, precision=self.precision)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **settings: Any) -> Self:
        """Open the component's folder; what diffusers says about places of weights is not for us."""
        dtype = settings.get("torch_dtype") or settings.get("dtype")
        return cls(Path(pretrained_model_name_or_path), dtype=dtype)

    def save_pretrained(self, save_directory: str | Path, **settings: Any) -> None:
        """Copy the folder that this was opened from."""
        shutil.copytree(self.folder, save_directory, dirs_exist_ok=True)

    @property
    def device(self) -> torch.device:
        """Where the ensemble lives."""
        return self.sampler.ensemble.device

    @property
    def dtype(self) -> torch.dtype:
        """The arithmetic of its networks."""
        name = devices.arithmetic(self.sampler.defaults.precision, self.device)
        return getattr(torch, name)

    def to(self, *args: Any, **settings: Any) -> Self:
        """The ensemble on another device, or in another arithmetic."""
        device, dtype, *_ = torch._C._nn._parse_to(*args, **settings)  # what nn.Module.to takes
        precision, where = _precision(dtype) or self.precision, device or self.device
        if where != self.device or precision != self.precision:
            self.precision = precision
            self.sampler = open_run_model(open_run(self.folder), str(where), precision=precision)
        return self


def _precision(dtype: torch.dtype | None) -> str | None:
    """The name of an arithmetic in which networks can be asked."""
    names = {None: None, torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
    if dtype not in names:
        raise ConfigError(f"an Atoll ensemble is sampled in float32, bfloat16 or float16, not {dtype}")
    return names[dtype]


def _known(scheduler: str) -> str:
    if scheduler not in SOLVERS:
        raise ConfigError(f"{scheduler} stands for no solver of Atoll's; use one of {', '.join(SOLVERS)}")
    return scheduler


ALSO = {"label": "class_labels", "steps": "num_inference_steps"} | {
    "guidance": "guidance_scale",
    "num": "num_images",
    "batch_size": "num_images",
}
"""Other words for what diffusers calls by these names."""


def _in_words_of_diffusers(own: dict[str, Any], settings: dict[str, Any]) -> list[Any]:
    """The values of the pipeline's own arguments, also where they came by another name."""
    for also, name in ALSO.items():
        value = settings.pop(also, None)
        if value is not None and own[name] is not None:
            raise ConfigError(f"{also} and {name} are the same; give one of them")
        own[name] = own[name] if value is None else value
    if "num_images_per_prompt" in settings:
        raise ConfigError("num_images_per_prompt is not known here; num_images is how many in all")
    return list(own.values())


def _values(x_0: Tensor, contents: SampleFormat) -> Tensor:
    """Samples as the data were, (n, channels, *grid); bytes in [0, 1]."""
    values = to_values(x_0, contents).cpu()
    return (values.round().clamp(0, 255) / 255) if contents.dtype == "uint8" else values


class AtollPipeline(DiffusionPipeline):  # type: ignore[misc]
    """Samples of an exported run by the habits of diffusers: the same as `atoll.load(folder).sample(…)`."""

    def __init__(self, ensemble: AtollEnsemble, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(ensemble=ensemble, scheduler=scheduler)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **settings: Any) -> Self:
        """Open an exported folder, here or on the Hub, without running any code from it."""
        also = settings.pop("dtype", None)
        dtype = settings.pop("torch_dtype", None) or also
        if settings:
            raise ConfigError(
                f"{', '.join(settings)}: not a setting here; see `atoll.load` and `.to(device)`"
            )
        folder = exported_folder(pretrained_model_name_or_path)
        name = read_json(folder / "scheduler" / "scheduler_config.json")["_class_name"]
        scheduler = getattr(diffusers, _known(name)).from_pretrained(folder / "scheduler")
        return cls(AtollEnsemble.from_pretrained(folder / ENSEMBLE, torch_dtype=dtype), scheduler)

    def save_pretrained(self, save_directory: str | Path, **settings: Any) -> None:
        """Copy the folder that this was opened from, with the scheduler that it has now."""
        folder = Path(save_directory)
        shutil.copytree(self.ensemble.folder.parent, folder, dirs_exist_ok=True)
        self.scheduler.save_pretrained(folder / "scheduler")
        index = read_json(folder / INDEX)
        write_json(folder / INDEX, {**index, "scheduler": ["diffusers", type(self.scheduler).__name__]})

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        class_labels: str | int | Sequence[str | int] | None = None,
        num_images: int | None = None,
        num_inference_steps: int | None = None,
        guidance_scale: float | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        output_type: str = "pil",
        **settings: Any,
    ) -> Any:
        """Draw samples; Atoll's own words (label, steps, guidance, num) are understood as well.

        Args:
            prompt: What they show; several are taken in turn.
            class_labels: Their classes, by number or name; several are taken in turn.
            num_images: How many; by default one for each prompt or class, or as many as the recipe says.
            num_inference_steps: Steps from noise to data.
            guidance_scale: Classifier-free guidance; 1 is none.
            seed: Sample i depends on this and on i alone.
            generator: In place of a seed: its initial seed is taken.
            output_type: `pil`; `np`, (n, height, width, channels), or `pt`, (n, channels, height, width), in
                [0, 1], or, where samples are not pictures, their values, (n, channels, *grid); `latent` for
                what the ensemble itself gives.
            settings: Any other setting of the recipe's [sample] section, such as `strategy`.
        """
        own = {
            "class_labels": class_labels,
            "num_inference_steps": num_inference_steps,
            "guidance_scale": guidance_scale,
            "num_images": num_images,
        }
        class_labels, num_inference_steps, guidance_scale, num_images = _in_words_of_diffusers(own, settings)
        subjects = prompt if prompt is not None else class_labels
        if num_images is None and subjects is not None:
            num_images = len(np.atleast_1d(subjects))
        if seed is None and generator is not None:
            seed = generator.initial_seed()
        x_0 = self.ensemble.sampler.sample(
            num_images,
            label=class_labels,
            prompt=prompt,
            steps=num_inference_steps,
            guidance=guidance_scale,
            seed=seed,
            **self._solver(),
            **settings,
        )
        return ImagePipelineOutput(images=self._finish(x_0, output_type))

    def _solver(self) -> dict[str, Any]:
        """The solver and shift that the scheduler stands for; its arithmetic is Atoll's own."""
        name, config = _known(type(self.scheduler).__name__), self.scheduler.config
        shift = config["flow_shift"] if "flow_shift" in config else config["shift"]
        return {"solver": SOLVERS[name], "shift": float(shift)}

    def _finish(self, x_0: Tensor, output_type: str) -> Any:
        contents = self.ensemble.contents
        if output_type == "latent":
            return x_0
        if output_type not in ("pil", "np", "pt"):
            raise ConfigError(f"output_type {output_type!r} is none of pil, np, pt, latent")
        if output_type != "pil" and contents.kind != "image" and contents.autoencoder is None:
            values = _values(x_0, contents)  # a drawing of a series is for people
            return values.numpy() if output_type == "np" else values
        pixels = to_pixels(x_0, contents)
        if output_type == "pil":
            return [Image.fromarray(one[..., 0] if one.shape[-1] == 1 else one) for one in pixels]
        scaled = pixels.astype("float32") / 255
        return scaled if output_type == "np" else torch.from_numpy(scaled).movedim(-1, 1)
