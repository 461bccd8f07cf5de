"""How networks are trained, and what experts and the router are: [expert], [router]."""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from atoll.config.adapter import START, AdapterConfig
from atoll.config.digest import ELSEWHERE, OPERATIONAL
from atoll.config.explain import explain
from atoll.config.network import SIZES, NetworkConfig, ObjectiveConfig
from atoll.config.section import Section

ENTRY_TIMES = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Where it is measured who knows more of an expert's samples, the expert or two moments of them."""
ENTRY_ROWS, ENTRY_RANK, ENTRY_SAMPLES = 32, 64, 1000
"""By how many samples that is measured; directions of the moments, and samples by which they are known."""


class TrainConfig(Section):
    """How a network is trained."""

    steps: int = Field(100_000, ge=1)
    """Optimiser steps."""
    batch: int = Field(128, ge=1)
    """Samples per step."""
    micro_batch: Annotated[int | None, OPERATIONAL] = Field(None, ge=1)
    """Samples per forward and backward pass; fewer than `batch` need less memory for the same result."""
    times: Literal["uniform", "logit-normal"] = "uniform"
    """Which noise levels are trained on: all alike, or those in the middle more often."""
    time_shift: float = Field(1.0, gt=0)
    """Above 1, more noise: t becomes s t / (1 + (s - 1) t), which large samples need."""
    time_span: tuple[float, float] = Field((0.0, 1.0), strict=False)
    """The noise levels t that are trained on, from the first to the second; experts of a run with a [shared]
    network have those that it leaves to them."""
    optimiser: Literal["adamw", "muon"] = "adamw"
    """`muon` takes the matrices of the blocks, AdamW the rest."""
    lr: float = Field(1e-4, gt=0)
    """Peak learning rate."""
    warmup: int = Field(0, ge=0)
    """Steps over which the learning rate rises from zero."""
    decay: Literal["none", "cosine"] = "none"
    """What the learning rate does after the warm-up."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    ema: float = Field(0.9999, ge=0, lt=1)
    """Decay of the averaged weights, which are the ones that sample; it starts lower and rises to this."""
    clip: float = Field(1.0, gt=0)
    """Largest norm of the gradient."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Arithmetic of forward and backward passes; weights stay float32. `auto`: bfloat16 where there are units
    for it, on older GPUs float16, which scales the loss."""
    compile: Annotated[Literal["auto", "on", "off"], OPERATIONAL] = "auto"
    """torch.compile; `auto`: on CUDA where it works, on a CPU if a trial before a long training pays."""
    recompute: Annotated[bool, OPERATIONAL] = False
    """Activation checkpointing: keep only the inputs of the blocks, a third more work for far less memory."""
    parallel: Annotated[Literal["auto", "ddp", "fsdp"], OPERATIONAL] = "auto"
    """Under torchrun: a whole copy per device, or its share of one; `auto`: a copy where it fits."""
    log_every: Annotated[int, OPERATIONAL] = Field(50, ge=1)
    """Steps between two lines of metrics."""
    holdout_every: Annotated[int, OPERATIONAL] = Field(1000, ge=1)
    """Steps after which the next line of metrics has the loss on samples that data.holdout keeps back."""
    preview_every: Annotated[int, OPERATIONAL] = Field(1000, ge=0)
    """Steps between two pictures of the same few seeds, as `previews/` beside the metrics; 0 for none."""
    tracking: Annotated[tuple[Literal["tensorboard", "wandb"], ...], OPERATIONAL] = Field((), strict=False)
    """Who else is told what is measured, each an extra of the same name: `tensorboard`, `wandb`."""
    save_every: Annotated[int, OPERATIONAL] = Field(1000, ge=1)
    """Steps between two checkpoints."""
    keep: Annotated[int, OPERATIONAL] = Field(1, ge=1)
    """Checkpoints kept, the newest first."""
    milestone_every: Annotated[int | None, OPERATIONAL] = Field(None, ge=1)
    """Checkpoints of these steps are kept for good."""

    @field_validator("time_span")
    @classmethod
    def _spans_something(cls, span: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= span[0] < span[1] <= 1:
            raise ValueError("time_span is two times from 0 to 1, the earlier first")
        return span


class OverrideConfig(Section):
    """What is different for the experts of some clusters: any other key of [expert]."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True, strict=True)

    clusters: tuple[int, ...] = Field(min_length=1, strict=False)
    """Which clusters."""


class ExpertConfig(NetworkConfig, TrainConfig, ObjectiveConfig):
    """One expert: its network, its training and its objective; every cluster's has the same unless said."""

    steps: int = Field(100_000, ge=0)
    """Optimiser steps; 0 takes `init` as it is."""
    weighting: Literal["uniform", "min-snr", "noise", "velocity", "data"] = "uniform"
    """How the loss is spread over noise levels: as it comes, min-SNR, or as another prediction's would be.
    Left out, whatever is predicted learns what a velocity needs, since that is what is asked (`velocity`)."""
    init: Annotated[str | None, ELSEWHERE] = None
    """A folder with an expert to start from: one that was trained, or that `atoll import` made."""
    convert: Literal["none", "exact", "published"] = "none"
    """If `init` has another objective: refuse; train it through the exact velocity; or give it a new head."""
    adapter: AdapterConfig | None = None
    """Train a small update of a network that stays as it is, instead of a network: an inline table of `rank`,
    `targets`, `scale`, `tokens` and `base`."""
    entry: bool = False
    """Keep with the expert two moments of its samples, and from which noise on they tell as much as it does.
    Samples that are told nothing, or a class, then enter there, in closed form (`sample.entry`). The moments
    show what the samples of a cluster, and of each class in it, have in common to whoever has the expert."""
    steps_of: Literal["expert", "share"] = "expert"
    """`share`: `steps` is the mean of all experts, and each takes as many as its cluster's share of the
    samples, since it will be asked so often."""
    batch_of: Literal["expert", "monolith"] = "expert"
    """`monolith`: `batch` is divided among the clusters, so that K experts cost what one model would."""
    override: Annotated[tuple[OverrideConfig, ...], ELSEWHERE] = Field((), strict=False)
    """Other settings for named clusters, as [[expert.override]] tables."""

    @model_validator(mode="before")
    @classmethod
    def _weighed_as_used(cls, given: Any) -> Any:
        """The natural loss of a velocity is weighed as a velocity's already."""
        if not isinstance(given, Mapping) or "weighting" in given:
            return given
        return {**given, "weighting": _usual_weighting(given.get("prediction", "velocity"))}

    @model_validator(mode="after")
    def _overrides_make_sense(self) -> Self:
        named: set[int] = set()
        for override in self.override:
            twice = named.intersection(override.clusters)
            if twice:
                raise ValueError(f"[[expert.override]] names cluster {min(twice)} twice; name it once")
            named.update(override.clusters)
            self._changed(override)
        if self.steps == 0 and self.init is None and self.adapter is None:
            raise ValueError("'expert.steps' = 0 takes expert.init as it is; give one, or train some steps")
        if self.adapter is not None and self.init is not None:
            raise ValueError("an adapter begins with its base: leave out expert.init, or expert.adapter")
        if self.adapter is not None and self.convert == "published":
            raise ValueError("expert.convert = 'published' changes the base of an adapter; use 'exact'")
        if self.convert != "none" and self.init is None and self.adapter is None:
            raise ValueError("expert.convert says how to use expert.init; give both or neither")
        if self.convert != "none" and (self.path, self.prediction) != ("linear", "velocity"):
            raise ValueError(
                "expert.convert turns into velocity on the linear path; leave out path, prediction"
            )
        return self

    def _changed(self, override: OverrideConfig) -> "ExpertConfig":
        """These settings with the override's; a mistake in it is told as one of its own."""
        changes = override.model_extra or {}
        allowed = ExpertConfig.model_fields.keys() - {"override"}
        for key in changes.keys() - allowed:
            near = difflib.get_close_matches(key, allowed, n=1)
            raise ValueError(
                f"unknown key '{key}' in [[expert.override]]"
                + (f", did you mean '{near[0]}'?" if near else "")
            )
        filled = {*SIZES["XL"], "patch"} if "size" in changes else set()
        if "prediction" in changes and self.weighting == _usual_weighting(self.prediction):
            filled = {*filled, "weighting"}  # left to the rule here, and so there
        base = {name: getattr(self, name) for name in allowed - filled}
        try:
            return ExpertConfig.model_validate({**base, **changes})
        except ValidationError as error:
            raise ValueError(f"in [[expert.override]]: {explain(error, ExpertConfig)}") from None

    @property
    def begins(self) -> str | None:
        """The folder or name of what it begins with, if that comes from outside the run."""
        if self.adapter is not None:
            return None if self.adapter.base == START else self.adapter.base
        return self.init

    def of_cluster(self, index: int) -> "ExpertConfig":
        """The settings of one cluster's expert."""
        for override in self.override:
            if index in override.clusters:
                return self._changed(override)
        return self.model_copy(update={"override": ()})


def _usual_weighting(prediction: str) -> str:
    return "uniform" if prediction == "velocity" else "velocity"


class StartConfig(TrainConfig):
    """A network trained on all data, from which every expert goes on alone; it is an expert's network.

    It is trained as experts are but for what is said, and but for `decay`: a learning rate that falls to zero
    before they begin is a step in the wrong direction, since theirs falls anyway (docs/results.md).
    """

    steps: int = Field(10_000, ge=1)
    """Optimiser steps."""
    condition: Literal["none", "cluster"] = "none"
    """`cluster`: it is told besides, by number, from which cluster a sample comes, and every expert begins as
    the start that is told its own. Asked by itself, it is told nothing."""


class SharedConfig(TrainConfig):
    """One network for the low noise of all clusters, which goes on from the start; experts have the rest.

    Where little noise is left, what is to be known is the same in all clusters, and an expert has but its
    cluster's share of the samples to learn it from. It is trained as the start is but for what is said, and
    but for `decay`: this is where that network's rate falls.
    """

    below: float = Field(0.5, gt=0, lt=1)
    """It is asked at times t below this, and experts above: they are trained on those alone."""
    steps: int = Field(1_000, ge=1)
    """Optimiser steps."""
    decay: Literal["none", "cosine"] = "cosine"
    """What the learning rate does after the warm-up."""


class RouterConfig(NetworkConfig, TrainConfig):
    """The router: its network and its training."""

    width: int = Field(192, ge=8)
    """Channels of a token; a router can be much smaller than an expert."""
    depth: int = Field(6, ge=1)
    """Number of blocks."""
    text: Literal["cross", "cross-mlp", "pooled"] = "pooled"
    """How a text is told; one state for the whole text is enough to tell clusters apart."""
    prototypes: int = Field(0, ge=0, le=256)
    """Means of groups of each cluster's samples by which the router knows clusters in closed form; what it
    learns is added to that. It costs next to nothing, and helps where clusters are near in the samples
    themselves, as those by pixels are. 0: it begins with nothing."""
    blind: bool = False
    """Tell the router nothing of the condition, as in Paris and HDDM."""
