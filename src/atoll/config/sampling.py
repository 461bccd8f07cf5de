"""How a finished run is sampled and judged: [sample], [evaluate]."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from atoll.config.digest import OPERATIONAL
from atoll.config.explain import did_you_mean
from atoll.config.patterns import STRATEGY
from atoll.config.section import Section

FEATURES = ("classifier", "pixels", "inception")
"""What distances can be measured on, besides models of transformers."""


GUIDANCE_NUM, GUIDANCE_STEPS, GUIDANCE_REAL = 128, 8, 1000
"""With how many samples in how many steps a guidance is tried that may be chosen, and with how many real ones
those are compared."""


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
    allow: str | None = Field(None, min_length=1, max_length=2000)
    """Which parts serve, by a rule over their cards, as "licence in {cc0, cc-by} and not medical in tags"."""
    protect: bool = False
    """Average the velocities of two halves of the parts, which share no training sample, instead of mixing
    all: what only one part has seen becomes unlikely. It costs quality and is no guarantee against copies."""
    solver: Literal["euler", "heun", "dpm++"] = "euler"
    """`euler` is of order one, `heun` of order two at two velocities a step, `dpm++` of order two at one."""
    steps: int = Field(50, ge=1)
    """Steps from noise to data."""
    shift: float = Field(1.0, gt=0)
    """Above 1, more of the steps are spent near the noise, as large pictures need."""
    guidance: float = Field(1.0, ge=1)
    """How far to move away from `against`, as classifier-free guidance does; 1 is none."""
    against: Literal["nothing", "start"] = "nothing"
    """What guidance moves away from: the same experts told nothing; or the network that they began with
    (autoguidance), which needs no condition, and a [start]."""
    untold: bool = False
    """With `against = "start"`: tell the start nothing, so that guidance moves away from what was learnt less
    of and from what no class or text was said of, both at once."""
    rest: Literal["experts", "start"] = "experts"
    """Who stands for experts that top-K and threshold-P leave out: those that they keep, renormalised; or the
    start, which knows best where nothing can be told yet. Needs `against = "start"`."""
    guidances: tuple[Annotated[float, Field(ge=1)], ...] = Field((), strict=False)
    """Guidances to choose from once experts are trained, in the place of `guidance`: from the first on, as
    long as a few samples come nearer to the data. What is best differs by data."""
    extrapolate: float = Field(1.0, ge=0, le=100)
    """How far experts go from the network that they began with, in their weights: 1 is where training took
    them, 2 twice as far. What guidance away from the start does, for one pass instead of two."""
    extrapolations: tuple[Annotated[float, Field(ge=0, le=100)], ...] = Field((), strict=False)
    """Values of `extrapolate` to choose from once experts are trained, before those of `guidances`."""
    shrink: bool = True
    """Whether experts that predict noise are shrunk near t = 1, where their errors grow, towards what two
    moments of their samples tell, by as much as was measured when they were trained."""
    entry: float | str = "auto"
    """The time at which samples enter the networks' flow: 1 is noise; above a lesser one, two moments of a
    cluster's samples stand for its expert. `auto`: as long as they tell as much (`expert.entry`)."""
    guided: tuple[float, float] = Field((0.0, 1.0), strict=False)
    """The interval of t in which guidance acts."""
    seed: int = Field(0, ge=0)
    """Sample i depends on this and on i alone."""
    batch: Annotated[int, OPERATIONAL] = Field(64, ge=1)
    """Samples per forward pass."""
    prompts: tuple[str, ...] = Field((), strict=False)
    """What is asked of a run with captions when nobody says a prompt, in turn; by default nothing is."""
    band: bool = True
    """Ask the router only at times at which it can change its mind, as measured when it was trained."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Arithmetic of the networks; noise, solver and weights of experts stay float32. `auto`: bfloat16 where
    it is fast, else float16 on a GPU that has units for it, else float32."""
    tf32: bool = False
    """Whether products of float32 may be taken in TF32 on a GPU: faster, with three digits."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the blocks of networks; `auto`: on a GPU, and as they are where that fails."""
    resident: Annotated[int | None, OPERATIONAL] = Field(None, ge=1)
    """Experts held on the device at once, the others waiting on disk; by default as many as fit."""
    provenance: bool = False
    """Also write who made what: weights over time, how much of the way each expert went, switches and
    disagreement of every sample, and a picture."""
    missing: Literal["fail", "skip"] = "fail"
    """What to do about an expert that is missing or damaged: stop, or serve with the rest."""

    @field_validator("entry")
    @classmethod
    def _is_a_time(cls, entry: float | str) -> float | str:
        """One sentence for both kinds, where a union would have one for each."""
        if entry != "auto" and not (isinstance(entry, float) and 0 < entry <= 1):
            raise ValueError("use 'auto', or a time above 0 and up to 1, which is noise")
        return entry

    @property
    def chooses(self) -> bool:
        """Whether something is chosen by samples once experts are trained."""
        return bool(self.guidances or self.extrapolations)


OF_ONE_MODEL: dict[str, Any] = {
    "against": "nothing",
    "untold": False,
    "rest": "experts",
    "guidances": (),
    "extrapolate": 1.0,
    "extrapolations": (),
}
"""Settings of [sample] that speak of what experts began with, as one model has them: it began with none."""


class EvaluateConfig(Section):
    """What `atoll evaluate` measures."""

    at_end: bool = False
    """Measure as a stage of the run: `atoll run` ends with it, and strangers' machines do it by quorum."""
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
                near = did_you_mean(name, FEATURES)
                raise ValueError(f"no features '{name}'; {near}use {', '.join(FEATURES)} or owner/model")
        return names
