"""What is said of a study in its one TOML file."""

from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from atoll.config import NAME, AdapterConfig, Section


class BudgetConfig(Section):
    """The training FLOPs of every cell: the same for all, with the router's counted."""

    samples: tuple[int, ...] = Field(min_length=1, strict=False)
    """As samples that one expert's network could be trained on; several are an axis."""
    router: float = Field(0.05, ge=0, lt=1)
    """The router's share."""
    start: tuple[float, ...] = Field((0.0,), min_length=1, strict=False)
    """The share for a start that all experts have in common: one network on all data, from which each goes
    on alone. Several are an axis."""
    shared: float = Field(0.0, ge=0, lt=1)
    """The share for a network for the low noise of all clusters, as [shared] of the recipe says."""
    adapter: tuple[Annotated[int, Field(ge=0)], ...] = Field((0,), min_length=1, strict=False)
    """Ranks of adapters on that start, in the place of networks of their own; 0 for those. Several are an
    axis."""

    @model_validator(mode="after")
    def _has_a_base(self) -> Self:
        if any(self.adapter) and not all(self.start):
            raise ValueError(
                "budget.adapter needs a start that adapters belong to; give budget.start a share"
            )
        return self

    @field_validator("start")
    @classmethod
    def _leaves_something(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 <= share < 0.95 for share in shares):
            raise ValueError("shares of a common start are numbers from 0 to below 0.95")
        return shares


class TuneConfig(Section):
    """What monolith and experts may choose from, each side by the same search and for the same budget."""

    batch: tuple[int, ...] = Field((), strict=False)
    """Samples per step, with `lr`: both sides search for theirs."""
    lr: tuple[float, ...] = Field((), strict=False)
    """Peak learning rates, with `batch`."""
    features: tuple[Annotated[str, Field(min_length=1)], ...] = Field((), strict=False)
    """What samples may be grouped by, as `encode.features` has it: "pixels", "start", a model. Tried after
    that; this search and the next come on top, since a monolith has none."""
    balanced: tuple[bool, ...] = Field((True,), min_length=1, strict=False)
    """With `features`: whether clusters are made equally large, as `partition.balanced` has it."""
    clusters: tuple[Annotated[int, Field(ge=2)], ...] = Field((), strict=False)
    """Numbers of experts, tried last."""
    rungs: int = Field(2, ge=1, le=8)
    """Rounds: in each the better half goes on with twice the samples, in the last with the whole budget."""
    num: int = Field(500, ge=8)
    """Samples by which each trial is judged."""
    seed: int | None = Field(None, ge=0)
    """Search with this seed, which the study does not report; by default with its first, whose own figures
    then count among those that settings were chosen by."""

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if bool(self.batch) != bool(self.lr):
            raise ValueError("tune.batch and tune.lr are searched for together; give both")
        if len(self.balanced) > 1 and not self.features:
            raise ValueError("tune.balanced is tried with tune.features; give both")
        if not (self.batch or self.features or self.clusters):
            raise ValueError("[tune] has nothing to try; give batch and lr, features, or clusters")
        return self


class StudyConfig(Section):
    """A whole study."""

    name: str = Field(pattern=NAME)
    question: str = ""
    """What the study is to answer, in a sentence."""
    recipe: str
    """The base: a recipe, by its path from the study's file."""
    set: dict[str, Any] = Field(default_factory=dict)
    """What is different from the recipe in every cell."""
    axes: dict[str, Any] = Field(default_factory=dict)
    """Keys of the recipe with a list of values each; every combination is a cell."""
    budget: BudgetConfig
    monolith: dict[str, Any] = Field(default_factory=dict)
    """What is different for the monolith besides its one cluster, such as its batch."""
    start: dict[str, Any] = Field(default_factory=dict)
    """What is different for a common start, such as its batch and learning rate; `condition` as [start] of a
    recipe has it."""
    adapter: dict[str, Any] = Field(default_factory=dict)
    """What is different for adapters, such as their learning rate, or which layers they update."""
    tune: TuneConfig | None = None
    """Find batch and learning rate of monolith and experts, by what samples are grouped, or how many experts,
    before anything else; by default they are said."""

    @model_validator(mode="after")
    def _adapters_are_said(self) -> Self:
        settings = self.adapter_settings
        if {"rank", "base"} & settings.keys():
            raise ValueError("ranks of adapters are budget.adapter, and their base is the start")
        for rank in filter(None, self.budget.adapter):
            AdapterConfig.model_validate({**settings, "rank": rank})
        return self

    @property
    def adapter_settings(self) -> dict[str, Any]:
        """What adapters are but for their rank: layers, scale, tokens."""
        settings: dict[str, Any] = self.adapter.get("expert", {}).get("adapter", {})
        return settings
