"""A whole run: one frozen, typed tree."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from atoll.config import grouping
from atoll.config.component import ComponentConfig
from atoll.config.credit import CreditConfig
from atoll.config.data import ConditionConfig, DataConfig, EncodeConfig, PartitionConfig
from atoll.config.launch import LaunchConfig, PlanConfig
from atoll.config.network import SIZES, NetworkConfig
from atoll.config.patterns import NAME
from atoll.config.sampling import EvaluateConfig, SampleConfig
from atoll.config.section import Section
from atoll.config.student import StudentConfig
from atoll.config.training import ExpertConfig, RouterConfig, SharedConfig, StartConfig, TrainConfig

OF_ALL_DATA: dict[str, Any] = {
    "override": (),
    "batch_of": "expert",
    "steps_of": "expert",
    "adapter": None,
    "entry": False,
}
"""Settings of an expert as a network on all data has them, whose clusters are nothing to it."""


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
    start: StartConfig | None = None
    shared: SharedConfig | None = None
    expert: ExpertConfig = ExpertConfig()
    router: RouterConfig = RouterConfig()
    student: StudentConfig | None = None
    sample: SampleConfig = SampleConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    credit: CreditConfig = CreditConfig()
    component: ComponentConfig = ComponentConfig()
    launch: LaunchConfig = LaunchConfig()
    plan: PlanConfig = PlanConfig()

    @model_validator(mode="before")
    @classmethod
    def _like_experts(cls, given: Any) -> Any:
        """A student has the experts' network, a start is trained as they are, but for what is said of it."""
        if not isinstance(given, Mapping) or not isinstance(given.get("expert", {}), Mapping):
            return given
        expert, completed = given.get("expert", {}), dict(given)
        for name, keys in (("student", _network_keys), ("start", _training_keys)):
            section = given.get(name)
            if isinstance(section, Mapping):
                like = {key: expert[key] for key in keys(section) if key in expert}
                completed[name] = {**like, **section}
        if isinstance(given.get("shared"), Mapping):
            completed |= _with_shared(completed)
        return completed

    @model_validator(mode="after")
    def _experts_begin_once(self) -> Self:
        settings = self._kinds_of_experts()
        if self.start is not None and any(one.begins for one in settings):
            raise ValueError(
                "experts begin with [start] or with expert.init or adapter.base: leave out one of them"
            )
        if self.start is None and any(one.adapter and not one.begins for one in settings):
            raise ValueError("expert.adapter.base = 'start' needs a [start]; add it, or name another base")
        return self

    @model_validator(mode="after")
    def _clusters_can_be_told(self) -> Self:
        if self.start is None or self.start.condition != "cluster":
            return self
        if self.pooled:
            raise ValueError(
                "start.condition = 'cluster' needs clusters before the start, and encode.features = 'start' "
                "makes them after it; set one of them otherwise"
            )
        if any(one.adapter for one in self._kinds_of_experts()):
            raise ValueError(
                "start.condition = 'cluster' is for experts that are whole networks; leave it out, or "
                "expert.adapter"
            )
        return self

    @model_validator(mode="after")
    def _sites_have_all_clusters(self) -> Self:
        if self.student is None or self.student.sites is None:
            return self
        named = [k for group in self.student.sites.clusters or () for k in group]
        if self.student.sites.clusters is not None and sorted(named) != list(range(self.partition.clusters)):
            raise ValueError(
                f"student.sites.clusters must name each cluster 0 to {self.partition.clusters - 1} once"
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

    def _kinds_of_experts(self) -> list[ExpertConfig]:
        """The settings of all experts, and of those of each override."""
        return [self.expert, *(self.expert.of_cluster(one.clusters[0]) for one in self.expert.override)]

    @property
    def grouped_by_start(self) -> bool:
        """Whether samples are grouped by what the network that experts begin with sees in them."""
        asked = self.partition
        alike = (asked.method, asked.like) == ("features", None) and asked.clusters > 1
        return alike and grouping.chosen(self) == "start"

    @property
    def pooled(self) -> bool:
        """Whether the start is trained before there are clusters, on all samples together."""
        return self.grouped_by_start and self.start is not None

    def start_settings(self) -> ExpertConfig:
        """The network that all experts begin with: an expert's, trained as [start] says."""
        assert self.start is not None
        training = {key: getattr(self.start, key) for key in TrainConfig.model_fields}
        return self.expert.model_copy(update={**training, **OF_ALL_DATA})

    def shared_settings(self) -> ExpertConfig:
        """The network for the low noise of all clusters: an expert's, trained as [shared] says."""
        assert self.shared is not None
        training = {key: getattr(self.shared, key) for key in TrainConfig.model_fields}
        span = {"time_span": (0.0, self.shared.below)}
        return self.expert.model_copy(update={**training, **span, **OF_ALL_DATA})

    def inits(self) -> list[str]:
        """The folders of other runs or imports that experts begin with, each once."""
        named = [self.expert_for(index).begins for index in range(self.partition.clusters)]
        return list(dict.fromkeys(folder for folder in named if folder is not None))

    def expert_for(self, index: int) -> ExpertConfig:
        """The settings of one cluster's expert, with what is said of it alone and the batch it takes."""
        settings = self.expert.of_cluster(index)
        if settings.batch_of == "expert":
            return settings
        share = max(1, settings.batch // self.partition.clusters)
        return settings.model_copy(update={"batch": share, "batch_of": "expert"})


def _network_keys(student: Mapping[str, Any]) -> set[str]:
    """What a student takes over; a size of its own says all that a size says."""
    named = {*SIZES["XL"], "patch", "size"} if "size" in student else set()
    return NetworkConfig.model_fields.keys() - named


def _training_keys(start: Mapping[str, Any]) -> set[str]:
    """What a start takes over from experts; not `decay`, since the rate falls once, in the experts."""
    return TrainConfig.model_fields.keys() - {"steps", "decay", "time_span"}


def _with_shared(given: Mapping[str, Any]) -> dict[str, Any]:
    """A shared network trained as the start, or as experts, is; and experts for the times that it leaves."""
    shared, expert = given["shared"], given.get("expert", {})
    start = given.get("start")
    model = start if isinstance(start, Mapping) else expert
    like = {key: model[key] for key in _training_keys(shared) if key in model}
    below = shared.get("below", SharedConfig.model_fields["below"].default)
    return {"shared": {**like, **shared}, "expert": {"time_span": (below, 1.0), **expert}}
