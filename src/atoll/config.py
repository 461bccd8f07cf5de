"""What a run is: one frozen, typed tree read from one TOML file."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from atoll.errors import ConfigError

STRATEGY = (
    r"^(auto|full|ancestral|oracle|top-[1-9]\d*|sample-[1-9]\d*|(threshold|nucleus)-(0?\.\d+|1(\.0*)?))$"
)
"""How a strategy is written."""
STRATEGIES = "full, top-K, threshold-P, nucleus-P, sample-N, ancestral or auto"
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""How a run or a study may be called: as a folder."""
FEATURES = ("classifier", "pixels", "inception")
"""What distances can be measured on, besides models of transformers."""


class Section(BaseModel):
    """A frozen group of settings that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, strict=True)


class DataConfig(Section):
    """Where samples come from, and what is taken of them."""

    source: str = "fashion-5k"
    """`fashion-5k` (embedded); a path to images, .npz, .npy, idx, .parquet or .tar; or `hub:owner/name`."""
    kind: Literal["auto", "image", "series", "video", "latent"] = "auto"
    """What arrays are; by default by rank: (C, T) series, (C, T, H, W) video, floats (C, H, W) latents."""
    layout: Literal["auto", "first", "last"] = "auto"
    """Where an array has its channels; by default last where pictures are usually so, else first."""
    size: int | None = Field(None, ge=1)
    """Resize the short side to this and crop the centre; by default pictures keep their size."""
    channels: Literal[1, 3] | None = None
    """1 for grey, 3 for RGB; by default as the source has them."""
    sample_field: str | None = None
    """The array, column or file ending with the samples; by default, as for the next two, the usual names."""
    label_field: str | None = None
    """The one with the labels."""
    caption_field: str | None = None
    """The one with the captions."""
    subset: str | None = None
    """Hub datasets: which of its configurations."""
    split: str = "train"
    """Hub datasets: which of its splits."""
    duplicates: Literal["keep", "drop"] = "keep"
    """What becomes of samples with equal values; they are counted in any case."""
    max_pixels: int = Field(64_000_000, ge=1)
    """Pictures with more pixels than this are skipped before they are unpacked."""
    max_skipped: float = Field(0.01, ge=0, le=1)
    """Stop when a larger share of the samples than this cannot be read."""
    part: int = Field(8192, ge=1)
    """Samples of one file at rest, which is what an interrupted `prepare` may have to do again."""


class EncodeConfig(Section):
    """What is computed of every sample before it rests; names are the Hub's, or folders."""

    autoencoder: str | None = None
    """A diffusers AutoencoderKL or AutoencoderTiny whose latents are trained on; by default pixels stay."""
    features: str = "pixels"
    """`pixels`, a vision model of transformers (`facebook/dinov2-base`), or EfficientNet-Lite0 by folder."""
    text: str | None = None
    """A text encoder of transformers for the captions; by default there is none."""
    text_tokens: int = Field(77, ge=1)
    """Longer captions are cut to so many tokens."""
    batch: int = Field(64, ge=1)
    """Samples per forward pass of these models."""
    device: str = "auto"
    """Where the models run: `cpu`, `cuda`, …; by default an accelerator if there is one."""


class PartitionConfig(Section):
    """How samples are grouped into clusters."""

    clusters: int = Field(8, ge=1)
    """Number of clusters, and so of experts. One cluster is the monolith."""
    method: Literal["features", "random", "labels", "file"] = "features"
    """`features`: alike by two-stage k-means; `random`: the baseline; `labels`; `file`: made elsewhere."""
    fine: int = Field(1024, ge=1)
    """Centres of the fine stage; fewer where there are not 20 samples for each."""
    balanced: bool = True
    """Give every cluster about the same number of samples."""
    dimensions: int | None = Field(None, ge=1)
    """Principal components of the features to keep; by default 64 of pixels and all of a model's."""
    file: str | None = None
    """For `file`: a .csv, .jsonl or .parquet with columns `cluster` and `name` or `id`."""
    like: str | None = None
    """A finished run whose partition is taken over: its samples stay where they are, new ones join them."""

    @model_validator(mode="after")
    def _file_with_its_method(self) -> Self:
        if (self.method == "file") != (self.file is not None):
            raise ValueError("partition.method 'file' and partition.file go together; give both or neither")
        if self.like is not None and self.method != "features":
            raise ValueError("partition.like brings its own method; leave out partition.method")
        return self


class ConditionConfig(Section):
    """What experts, router and student are told about a sample."""

    kind: Literal["none", "class", "text"] = "none"
    """`class` uses the labels of the source, `text` the states of its captions (see encode.text)."""
    dropout: float = Field(0.1, ge=0, le=1)
    """How often training hides the condition, so that there is an unconditional model to guide against."""


SIZES: dict[str, dict[str, int]] = {
    "S": {"width": 384, "depth": 12, "heads": 6},
    "B": {"width": 768, "depth": 12, "heads": 12},
    "L": {"width": 1024, "depth": 24, "heads": 16},
    "XL": {"width": 1152, "depth": 28, "heads": 16},
}
"""The sizes of DiT (Peebles & Xie 2022, table 1)."""


class NetworkConfig(Section):
    """The size and kind of a transformer."""

    size: str | None = Field(None, pattern=r"^(S|B|L|XL)/[1-9][0-9]*$")
    """A size of the papers with the patch for images, such as `XL/2`; any key given beside it wins."""
    width: int = Field(384, ge=8)
    """Channels of a token."""
    depth: int = Field(12, ge=1)
    """Number of blocks."""
    heads: int = Field(6, ge=1)
    """Attention heads; they divide the width."""
    patch: tuple[int, ...] = Field((2, 2), min_length=1, max_length=3, strict=False)
    """Samples per token along each axis of the grid; its length is the rank of the data (2 for images)."""
    mlp: float = Field(4.0, gt=0)
    """Width of the hidden layer, in token widths."""
    activation: Literal["gelu", "gelu-tanh"] = "gelu"
    """`gelu-tanh` is DiT's approximation, for weights from there; on a CPU it costs four times as much."""
    modulation: Literal["block", "shared"] = "block"
    """Layers that turn the time into scales, shifts and gates: one per block (AdaLN-Zero), or one shared by
    all with a small table per block (AdaLN-Single), which saves about a third of the parameters."""
    text: Literal["cross", "cross-mlp", "pooled"] = "cross"
    """How a text is told: by cross-attention on the states of its tokens, which one layer or, as in PixArt,
    two project first; or as one state with the time."""
    qk_norm: bool = False
    """Normalise queries and keys, which keeps attention tame in large or half-precision networks."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_size(cls, given: Any) -> Any:
        """What the size stands for, under what is said explicitly; a wrong size is left for its own check."""
        if not isinstance(given, Mapping) or not isinstance(given.get("size"), str):
            return given
        name, _, patch = given["size"].partition("/")
        if name not in SIZES or not patch.isdecimal():
            return given
        return {**SIZES[name], "patch": (int(patch), int(patch)), **given}

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.width // self.heads % 2 or self.width % (2 * len(self.patch)):
            raise ValueError(
                f"width {self.width} must be a multiple of {2 * len(self.patch)} for positions over "
                f"{len(self.patch)} axes, and width / heads must be even"
            )
        if min(self.patch) < 1:
            raise ValueError("every entry of patch must be at least 1")
        return self


class TrainConfig(Section):
    """How a network is trained."""

    steps: int = Field(100_000, ge=1)
    """Optimiser steps."""
    batch: int = Field(128, ge=1)
    """Samples per step."""
    micro_batch: int | None = Field(None, ge=1)
    """Samples per forward and backward pass; fewer than `batch` need less memory for the same result."""
    times: Literal["uniform", "logit-normal"] = "uniform"
    """Which noise levels are trained on: all alike, or those in the middle more often."""
    time_shift: float = Field(1.0, gt=0)
    """Above 1, more noise: t becomes s t / (1 + (s - 1) t), which large samples need."""
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
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of forward and backward passes; weights stay float32. `auto`: bfloat16 where it is fast."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; `auto`: on CUDA, and on a CPU if a trial at the start of a long training pays."""
    recompute: bool = False
    """Activation checkpointing: keep only the inputs of the blocks, a third more work for far less memory."""
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    """Under torchrun: a whole copy per device, or its share of one; `auto`: a copy where it fits."""
    log_every: int = Field(50, ge=1)
    """Steps between two lines of metrics."""
    save_every: int = Field(1000, ge=1)
    """Steps between two checkpoints."""
    keep: int = Field(1, ge=1)
    """Checkpoints kept, the newest first."""
    milestone_every: int | None = Field(None, ge=1)
    """Checkpoints of these steps are kept for good."""

    OPERATION: ClassVar[frozenset[str]] = frozenset(
        {"micro_batch", "compile", "recompute", "parallel"}
        | {"log_every", "save_every", "keep", "milestone_every"}
    )
    """What may change while training is interrupted: how it is done on a machine, not what is trained."""


class ObjectiveConfig(Section):
    """What a network predicts, and on which path; any of them becomes the same velocity when sampling."""

    path: Literal["linear", "cosine", "linear-beta", "scaled-linear"] = "linear"
    """Flow matching's; improved DDPM's; DDPM's, which is DiT's; or Stable Diffusion's noise schedule."""
    prediction: Literal["velocity", "noise", "data", "v"] = "velocity"
    """noise - x_0; the noise; x_0; or α noise - σ x_0."""


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
    """How the loss is spread over noise levels: as it comes, min-SNR, or as another prediction's would be."""
    init: str | None = None
    """A folder with an expert to start from: one that was trained, or that `atoll import` made."""
    convert: Literal["none", "exact", "published"] = "none"
    """If `init` has another objective: refuse; train it through the exact velocity; or give it a new head."""
    batch_of: Literal["expert", "monolith"] = "expert"
    """`monolith`: `batch` is divided among the clusters, so that K experts cost what one model would."""
    override: tuple[OverrideConfig, ...] = Field((), strict=False)
    """Other settings for named clusters, as [[expert.override]] tables."""

    @model_validator(mode="after")
    def _overrides_make_sense(self) -> Self:
        named: set[int] = set()
        for override in self.override:
            twice = named.intersection(override.clusters)
            if twice:
                raise ValueError(f"[[expert.override]] names cluster {min(twice)} twice; name it once")
            named.update(override.clusters)
            self._changed(override)
        if self.steps == 0 and self.init is None:
            raise ValueError("'expert.steps' = 0 takes expert.init as it is; give one, or train some steps")
        if self.convert != "none" and self.init is None:
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
        base = {name: getattr(self, name) for name in allowed - filled}
        try:
            return ExpertConfig.model_validate({**base, **changes})
        except ValidationError as error:
            raise ValueError(f"in [[expert.override]]: {explain(error, ExpertConfig)}") from None

    def of_cluster(self, index: int) -> "ExpertConfig":
        """The settings of one cluster's expert."""
        for override in self.override:
            if index in override.clusters:
                return self._changed(override)
        return self.model_copy(update={"override": ()})


class RouterConfig(NetworkConfig, TrainConfig):
    """The router: its network and its training."""

    width: int = Field(192, ge=8)
    """Channels of a token; a router can be much smaller than an expert."""
    depth: int = Field(6, ge=1)
    """Number of blocks."""
    text: Literal["cross", "cross-mlp", "pooled"] = "pooled"
    """How a text is told; one state for the whole text is enough to tell clusters apart."""
    blind: bool = False
    """Tell the router nothing of the condition, as in Paris and HDDM."""


Teacher = Literal["label", "ensemble", "sampled"]
"""Who teaches at a noisy sample: the expert of its own cluster; all experts as the router weighs them; or one
that is drawn from the router's posterior."""


class FewStepConfig(TrainConfig):
    """A student that needs few steps: a flow map, which is told where a step ends."""

    method: Literal["meanflow", "progressive"] = "meanflow"
    """MeanFlow distillation, for 1 to 8 steps; or halving the number of steps again and again, for 4 to 8."""
    teacher: Literal["student", "label", "ensemble", "sampled"] = "student"
    """The dense student; or, as [student] has them, experts directly, which saves one distillation."""
    init: Literal["student", "expert", "average", "start"] = "student"
    """What it starts from."""
    steps: int = Field(20_000, ge=0)
    """Optimiser steps; of `progressive`, for each halving. 0 leaves it at the trajectories, which is best
    where training is short."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Differences of neighbouring times need float32."""
    trajectories: int = Field(5000, ge=0)
    """Steps of training beforehand on the teacher's own trajectories, without which MeanFlow may explode."""
    grid: int = Field(16, ge=2)
    """Solver steps of such a trajectory; of `progressive`, those that the teacher starts with."""
    fewest: int = Field(4, ge=1)
    """Of `progressive`: the number of steps at which halving ends."""
    pairs: float = Field(0.25, gt=0, le=1)
    """The share of samples from which a step is taken; the others keep the velocity right."""
    delta: float = Field(0.02, gt=0, lt=0.5)
    """How far in time the points of a finite difference are from its middle. Networks see waves of t that are
    0.006 long: a shorter distance sees little else, a much longer one blurs what is to be learnt."""
    power: float | None = Field(None, ge=0, le=1)
    """How much large losses are held back: 0 not at all, 1 to one size. By default 1, for single experts 0:
    what they teach scatters about the ensemble, and would be pulled to one side."""
    floor: float = Field(1e-3, gt=0)
    """Losses below this count less and less."""
    sample_steps: int = Field(4, ge=1)
    """Steps from noise to data unless the command says otherwise."""
    sample_shift: float = Field(2.0, gt=0)
    """`sample.shift` of these steps and of the trajectories that are learnt: above 1 steps are shorter near
    the noise, where it is decided what becomes of it. `progressive` takes even steps."""

    @model_validator(mode="after")
    def _methods_with_their_teachers(self) -> Self:
        if self.precision != "float32":
            raise ValueError("student.few.precision must be 'float32': differences of times need it")
        if self.steps == 0 and (self.method == "progressive" or self.trajectories == 0):
            raise ValueError("'student.few.steps' = 0 leaves it at trajectories: give some, with 'meanflow'")
        if self.method == "progressive":
            if self.teacher in ("label", "sampled"):
                raise ValueError(
                    "'progressive' asks its teacher at points that it moved, where one expert does not stand "
                    "for all: set student.few.teacher to 'student' or 'ensemble'"
                )
            levels = self.grid // self.fewest
            if self.fewest * levels != self.grid or levels & (levels - 1) or levels < 2:
                raise ValueError(
                    f"'progressive' halves {self.grid} steps (student.few.grid) down to {self.fewest} "
                    "(student.few.fewest): make their ratio 2, 4, 8, …"
                )
        return self


class IslandsConfig(Section):
    """Distillation by islands that exchange weights only now and then, each with its own experts and data."""

    clusters: tuple[Annotated[tuple[int, ...], Field(strict=False)], ...] | None = Field(None, strict=False)
    """The clusters of each island, as [[0, 1], [2, 3]]; by default every cluster is an island."""
    inner: int = Field(30, ge=1)
    """Steps that an island takes alone before its weights are merged."""
    optimiser: Literal["own", "merged"] = "merged"
    """Whether an island keeps the moments of its own gradients or begins each round with the mean of all.
    Own ones are a third of the traffic, but then each island scales its steps by its own data, and what they
    agree on is not where the mean of their gradients vanishes, however small the steps."""
    outer_lr: float = Field(0.7, gt=0)
    """How far the merged model moves along the mean of the islands' movements."""
    momentum: float = Field(0.3, ge=0, lt=1)
    """Nesterov's, of these moves. Movements of short rounds point the same way and add up: the model moves
    outer_lr / (1 - momentum) times as far, which should be about 1. Hundreds of inner steps bear 0.9."""


class StudentConfig(NetworkConfig, TrainConfig):
    """One model from many: its network, by default the experts' own, its training, and who teaches it."""

    steps: int = Field(100_000, ge=0)
    """Optimiser steps; 0 trains no dense student, only a few-step one."""
    teacher: Teacher = "label"
    """`label`: the expert of each sample's own cluster, which needs no router and is as good on the average;
    `ensemble`: all experts, weighed by the router; `sampled`: one, drawn from the router's posterior."""
    init: Literal["scratch", "expert", "average", "start"] = "scratch"
    """From nothing, from the largest cluster's expert, from the mean of experts that share a start, or from
    that start itself, `expert.init`."""
    guidance: float = Field(1.0, ge=1)
    """Classifier-free guidance of the teacher, which the student then has for nothing; 1 is none."""
    guided: tuple[float, float] = Field((0.0, 0.7), strict=False)
    """The interval of t in which that guidance acts."""
    data: Literal["clusters", "drawn"] = "clusters"
    """The samples to learn at: those of the clusters, or samples drawn from the experts, without any data."""
    drawn: int = Field(50_000, ge=1)
    """How many samples the experts draw together for `data = "drawn"`."""
    resident: int | None = Field(None, ge=1)
    """Teachers held on the device at once, the others waiting on disk; all by default."""
    few: FewStepConfig | None = None
    """A few-step student as well, as [student.few]."""
    islands: IslandsConfig | None = None
    """Distil on islands, as [student.islands]."""

    @model_validator(mode="after")
    def _students_have_teachers(self) -> Self:
        if self.steps == 0 and self.few is None:
            raise ValueError("'student.steps' = 0 trains no dense student; add [student.few], or some steps")
        if self.steps == 0 and self.few is not None and "student" in (self.few.teacher, self.few.init):
            raise ValueError(
                "'student.steps' = 0 trains no dense student to learn from: set student.few.teacher and "
                "student.few.init to others, or train some steps"
            )
        if self.islands is not None and self.teacher != "label":
            raise ValueError("islands have only their own experts: leave student.teacher at 'label'")
        return self


class SampleConfig(Section):
    """How a finished run is sampled unless the command says otherwise."""

    model: Literal["ensemble", "student", "few-step"] = "ensemble"
    """Who draws: all experts together, the one model that was distilled from them, or its few-step kin."""

    num: int = Field(64, ge=1)
    """How many samples."""
    strategy: str = Field("auto", pattern=STRATEGY)
    """`full`, `top-K`, `threshold-P`, `nucleus-P`, `sample-N`, `ancestral`, `oracle`; or `auto`: top-1 where
    the condition tells the cluster, else ancestral."""
    temperature: float = Field(1.0, gt=0)
    """Of the router's posterior: below 1 sharpens it, above 1 flattens it."""
    experts: tuple[int, ...] | None = Field(None, min_length=1, strict=False)
    """Which experts serve; the posterior is renormalised over them. All by default."""
    solver: Literal["euler", "heun", "dpm++"] = "euler"
    """`euler` is of order one, `heun` of order two at two velocities a step, `dpm++` of order two at one."""
    steps: int = Field(50, ge=1)
    """Steps from noise to data."""
    shift: float = Field(1.0, gt=0)
    """Above 1, more of the steps are spent near the noise, as large pictures need."""
    guidance: float = Field(1.0, ge=1)
    """Classifier-free guidance; 1 is none."""
    guided: tuple[float, float] = Field((0.0, 1.0), strict=False)
    """The interval of t in which guidance acts."""
    seed: int = Field(0, ge=0)
    """Sample i depends on this and on i alone."""
    batch: int = Field(64, ge=1)
    """Samples per forward pass."""
    prompts: tuple[str, ...] = Field((), strict=False)
    """What is asked of a run with captions when nobody says a prompt, in turn; by default nothing is."""
    band: bool = True
    """Ask the router only at times at which it can change its mind, as measured when it was trained."""
    resident: int | None = Field(None, ge=1)
    """Experts held on the device at once, the others waiting on disk; all by default."""
    provenance: bool = False
    """Also write who made what: weights over time, switches, disagreement of every sample, and a picture."""
    missing: Literal["fail", "skip"] = "fail"
    """What to do about an expert that is missing or damaged: stop, or serve with the rest."""


class EvaluateConfig(Section):
    """What `atoll evaluate` measures."""

    num: int = Field(1000, ge=8)
    """Samples that are drawn and judged."""
    features: tuple[str, ...] = Field((), strict=False)
    """What distances are measured on: `classifier` (trained on the data's labels), `pixels`, `inception` for
    the reference FID, any vision model of transformers; by default the classifier if there are labels."""
    strategies: tuple[Annotated[str, Field(pattern=STRATEGY)], ...] = Field((), strict=False)
    """Strategies to compare; by default the one of [sample]."""
    reference: int = Field(50_000, ge=16)
    """At most so many real samples are compared with."""
    neighbours: int = Field(3, ge=1)
    """Of precision and recall."""
    bootstrap: int = Field(100, ge=2)
    """Resamples behind every interval."""
    routing: int = Field(256, ge=0)
    """Real samples on which router and experts are examined at ten times; 0 leaves it out."""
    monolith: str | None = None
    """Folder of a finished run of one cluster whose pictures of the same noise are compared."""
    lpips: str | None = None
    """LPIPS's AlexNet as .npz, a file or `hub:owner/name`: how different pictures of one prompt are."""
    clip: str | None = None
    """A CLIP of transformers: whether pictures show what their prompt says."""

    @field_validator("features")
    @classmethod
    def _are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:  # a model has an owner, or is a folder
            if name not in FEATURES and "/" not in name and not Path(name).expanduser().exists():
                raise ValueError(f"there are no features '{name}'; use {', '.join(FEATURES)} or owner/model")
        return names


class LaunchConfig(Section):
    """How jobs share the machine."""

    at_once: int | None = Field(None, ge=1)
    """Experts trained at the same time; by default one per GPU, or else one per core."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of each job; by default the cores divided by the jobs at once."""
    store: str = ""
    """Where the run lives for several machines: s3://bucket/folder, gs://, az:// or a mounted folder."""
    patience: float = Field(300.0, gt=0)
    """Seconds for which a store may fail before a job stops, to be run again."""
    lease: float = Field(60.0, gt=0)
    """Seconds of silence after which a job elsewhere is taken for dead, and another goes on with it."""
    retries: int = Field(20, ge=0)
    """On Ray and Slurm: how often a job that was stopped or lost is started again."""
    gpus: float = Field(1.0, ge=0)
    """On Ray and Slurm: GPUs of each job, where there are any."""
    resources: dict[str, float] = Field({}, strict=False)
    """On Ray: other resources that a job needs, as { A100 = 1 }."""
    minutes: int = Field(1440, ge=1)
    """On Slurm: the time limit of a job; it saves before that and goes on in a new one."""
    grace: int = Field(120, ge=1)
    """On Slurm: seconds before the time limit at which a job saves."""
    slurm: dict[str, str | int] = Field({}, strict=False)
    """Options of sbatch, as { partition = "gpu", account = "lab" }."""


class PlanConfig(Section):
    """What `atoll plan` assumes of data that is not there yet; training never looks at it."""

    shape: tuple[int, ...] | None = Field(None, strict=False)
    """(channels, *grid) of a sample as the networks see it; by default as far as [data] and [encode] tell."""
    samples: int | None = Field(None, ge=1)
    """How many samples there will be."""
    classes: int = Field(0, ge=0)
    """How many classes, for condition.kind = "class"."""
    text_width: int = Field(768, ge=1)
    """Width of the states of a text, for condition.kind = "text"."""
    gpu: str = "A100-80GB"
    """The device that the plan is for; `atoll plan` lists those that it knows."""


class RunConfig(Section):
    """A whole run."""

    name: str = Field(pattern=NAME)
    """The run lives in `runs/<name>`."""
    seed: int = Field(0, ge=0)
    """All randomness is a function of this, the job and the step."""
    data: DataConfig = DataConfig()
    encode: EncodeConfig = EncodeConfig()
    partition: PartitionConfig = PartitionConfig()
    condition: ConditionConfig = ConditionConfig()
    expert: ExpertConfig = ExpertConfig()
    router: RouterConfig = RouterConfig()
    student: StudentConfig | None = None
    sample: SampleConfig = SampleConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    launch: LaunchConfig = LaunchConfig()
    plan: PlanConfig = PlanConfig()

    @model_validator(mode="before")
    @classmethod
    def _student_like_expert(cls, given: Any) -> Any:
        """A student has the experts' network but for what is said of it."""
        student = given.get("student") if isinstance(given, Mapping) else None
        expert = given.get("expert", {}) if isinstance(given, Mapping) else None
        if not isinstance(student, Mapping) or not isinstance(expert, Mapping):
            return given
        named = {*SIZES["XL"], "patch", "size"} if "size" in student else set()
        like = {key: expert[key] for key in NetworkConfig.model_fields.keys() - named if key in expert}
        return {**given, "student": {**like, **student}}

    @model_validator(mode="after")
    def _islands_have_all_clusters(self) -> Self:
        if self.student is None or self.student.islands is None:
            return self
        named = [k for group in self.student.islands.clusters or () for k in group]
        if self.student.islands.clusters is not None and sorted(named) != list(
            range(self.partition.clusters)
        ):
            raise ValueError(
                f"student.islands.clusters must name each cluster 0 to {self.partition.clusters - 1} once"
            )
        return self

    @model_validator(mode="after")
    def _overrides_name_clusters(self) -> Self:
        for override in self.expert.override:
            for index in override.clusters:
                if not 0 <= index < self.partition.clusters:
                    raise ValueError(
                        f"[[expert.override]] names cluster {index}, "
                        f"but this run has clusters 0 to {self.partition.clusters - 1}"
                    )
        return self

    def expert_for(self, index: int) -> ExpertConfig:
        """The settings of one cluster's expert, with what is said of it alone and the batch it takes."""
        found = self.expert.of_cluster(index)
        if found.batch_of == "expert":
            return found
        share = max(1, found.batch // self.partition.clusters)
        return found.model_copy(update={"batch": share, "batch_of": "expert"})


def load(path: Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a recipe, apply `section.key=value` overrides, and validate the whole."""
    tree = read_toml(path, "no such recipe; see recipes/ for examples")
    if "recipe" in tree and "budget" in tree:
        raise ConfigError(f"{path} is a study, not a recipe; use `atoll study {path}`")
    for override in overrides:
        _assign(tree, override)
    return validate(tree, str(path))


def read_toml(path: Path, missing: str) -> dict[str, Any]:
    """The tree in a TOML file; `missing` is what to say where there is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: {missing}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def assignments(overrides: Iterable[str]) -> dict[str, Any]:
    """The tree that `key=value` settings alone make."""
    tree: dict[str, Any] = {}
    for override in overrides:
        _assign(tree, override)
    return tree


def merged(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A tree with the values of another put in their places."""
    result = dict(tree)
    for key, value in changes.items():
        inner = result.get(key)
        deeper = isinstance(inner, Mapping) and isinstance(value, Mapping)
        result[key] = merged(inner or {}, value) if deeper else value
    return result


def validate(tree: Mapping[str, Any], origin: str) -> RunConfig:
    """Turn a tree of plain values into a run, or say in one line what is wrong with it."""
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {explain(error, RunConfig)}") from None


def _assign(tree: dict[str, Any], override: str) -> None:
    """Apply one `section.key=value`; the value is TOML, or a bare word for a string."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override}: write section.key=value, for example expert.steps=500")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *sections, leaf = key.strip().split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"--set {override}: {section} is a value, not a section")
    tree[leaf] = value


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """All that is wrong, in one line; misspelt keys first, since what is missing may be one of them."""
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    return "; ".join(_explain(problem, model) for problem in problems)


IN_WORDS = {
    STRATEGY: f"use {STRATEGIES}",
    NAME: "use letters, digits, '.', '_' and '-', and begin with a letter or digit",
}
"""What patterns mean."""


def _explain(problem: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Say one validation problem as a person would."""
    where = ".".join(str(part) for part in problem["loc"])
    kind = problem["type"]
    if kind == "extra_forbidden":
        near = _nearest(where, model)
        return f"unknown key '{where}'" + (f", did you mean '{near}'?" if near else "; see docs/reference.md")
    if kind == "missing":
        return f"'{where}' is missing"
    said = f"'{where}' = {problem['input']!r}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{said}: this is a section, set one of its keys"
    if kind in ("tuple_type", "list_type"):
        return f"{said}: give a list, such as [{problem['input']!r}]"
    if kind == "string_pattern_mismatch" and problem["ctx"]["pattern"] in IN_WORDS:
        return f"{said}: {IN_WORDS[problem['ctx']['pattern']]}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{said}: {message[0].lower()}{message[1:]}" if where else message


def _nearest(key: str, model: type[BaseModel]) -> str | None:
    """The known key of the same section that is most like this one."""
    section, _, leaf = key.rpartition(".")
    beside = [name.rpartition(".")[2] for name in known_keys(model) if name.rpartition(".")[0] == section]
    match = difflib.get_close_matches(leaf, beside, n=1, cutoff=0.6)
    return f"{section}.{match[0]}".lstrip(".") if match else None


def known_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> list[str]:
    """Every key of a recipe, dotted."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        section = section_of(field.annotation)
        if section is not None:
            keys += known_keys(section, f"{prefix}{name}.")
    return keys


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a key holds, also where it may be left out."""
    for kind in get_args(annotation) if isinstance(annotation, UnionType) else (annotation,):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
