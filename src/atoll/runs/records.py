"""What stages say of themselves: frozen types, parsed once at the door, from our own disk or a stranger's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

from atoll.errors import RunError
from atoll.runs.files import digest, safe_name
from atoll.runs.parsing import VERSION, validated, versioned

FileName = Annotated[str, AfterValidator(safe_name)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PartRows = tuple[FileName, Count]
"""A file of samples, and how many are in it."""


class Frozen(BaseModel):
    """A frozen value that refuses keys it does not know, and numbers that are none."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="constants")


class Contents(Frozen):
    """What is in the folder of a finished stage; a kind that nobody here knows keeps its plain values."""

    model_config = ConfigDict(extra="allow")
    STAGE: ClassVar[str] = "other"
    KINDS: ClassVar[dict[str, type["Contents"]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        """Every type that names its kind of stage is known by it."""
        if "STAGE" in cls.__dict__:
            Contents.KINDS[cls.STAGE] = cls

    def facts(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return self.model_dump(mode="json")

    def at(self, folder: Path) -> dict[str, Any]:
        """The same with the files that it names where they are, for a person."""
        return self.facts()


class TextFormat(Frozen):
    """The text encoder of captions."""

    model: str
    tokens: int = Field(ge=1)
    width: int = Field(ge=1)


class SampleFormat(Contents):
    """What stored values mean: enough to show samples to networks and to people."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["image", "series", "video", "latent"]
    dtype: Literal["uint8", "uint16", "float16", "float32"]
    mean: tuple[float, ...] = Field(min_length=1)
    """Of each channel, as `std`; (value - mean) / std is what networks see."""
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1)
    autoencoder: str | None = None
    preview: tuple[tuple[float, ...], ...] | None = None
    """The linear map from latents (and a one) to the pixels that they stand for."""

    @model_validator(mode="after")
    def _a_std_for_each_mean(self) -> Self:
        if len(self.mean) != len(self.std):
            raise ValueError("mean and std have different lengths")
        return self


class SamplesContents(SampleFormat):
    """Samples at rest, of whatever stage."""

    shape: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    """(channels, *grid) of one sample."""
    group: int = Field(ge=1)
    """Rows of a Parquet row group."""
    rows: Count
    class_names: tuple[str, ...] = ()
    text: TextFormat | None = None

    @model_validator(mode="after")
    def _statistics_of_each_channel(self) -> Self:
        if len(self.mean) != self.shape[0]:
            raise ValueError(f"{len(self.mean)} means for {self.shape[0]} channels")
        return self

    @property
    def standard(self) -> tuple[Any, ...]:
        """What samples must have in common to be trained on together."""
        return self.shape, self.dtype, self.mean, self.std


class Remark(Frozen):
    """Something that was said of samples."""

    what: str
    count: Count
    first: str
    """The first sample that it was said of."""


class Understood(Frozen):
    """What `prepare` took a source for, beyond what networks need."""

    notes: tuple[str, ...] = ()
    """What was decided, and why."""
    labelled: Count = 0
    class_counts: dict[str, Count] = {}
    captions: Count = 0
    remarks: tuple[Remark, ...] = ()
    """What was lost of samples on the way."""
    reasons: tuple[Remark, ...] = ()
    """Why samples were skipped."""
    ignored: dict[str, Count] = {}
    """Files that were left out, by their endings."""


class DataContents(SamplesContents):
    """All samples of a source."""

    STAGE = "data"
    bytes: Count
    parts: tuple[PartRows, ...]
    features: str
    """What clusters are made by: `pixels`, or the name of a vision model."""
    skipped: Count = 0
    skipped_examples: tuple[dict[str, JsonValue], ...] = ()
    duplicates: Count = 0
    understood: Understood = Understood()


class SharedContents(SamplesContents):
    """What a partition and each of its clusters know of the whole."""

    classes: Count
    clusters: int = Field(ge=1)
    priors: tuple[Share, ...]
    """The share of each cluster in all samples."""

    @model_validator(mode="after")
    def _one_for_each_cluster(self) -> Self:
        if len(self.priors) != self.clusters:
            raise ValueError(f"{len(self.priors)} priors for {self.clusters} clusters")
        return self


class PartitionContents(SharedContents):
    """The assignment of all samples to clusters."""

    STAGE = "partition"
    method: str
    features: str
    sizes: tuple[Count, ...]
    digests: tuple[Sha256, ...] | None = None
    """Of the clusters' files."""
    margins: tuple[float, ...] | None = None
    nmi: float | None = None
    """Mutual information of clusters and labels, normalised."""
    labels: tuple[tuple[Count, ...], ...] | None = None
    """How often each cluster has each class."""
    holdout: Count = 0
    """Samples of no cluster, on which nobody trains; `rows` are without them."""

    @model_validator(mode="after")
    def _one_size_for_each_cluster(self) -> Self:
        for name in ("sizes", "digests", "margins", "labels"):
            values = getattr(self, name)
            if values is not None and len(values) != self.clusters:
                raise ValueError(f"{len(values)} {name} for {self.clusters} clusters")
        if any(len(row) != self.classes for row in self.labels or ()):
            raise ValueError(f"labels are not of {self.classes} classes")
        return self


class ClusterContents(SharedContents):
    """The samples of one cluster: all that its expert may see."""

    STAGE = "cluster"
    cluster: Count
    prior: Share
    bytes: Count
    parts: tuple[PartRows, ...]
    holdout: tuple[PartRows, ...] = ()
    """Files of samples that would be of this cluster, but on which nobody trains."""

    @model_validator(mode="after")
    def _parts_are_all(self) -> Self:
        if self.cluster >= self.clusters:
            raise ValueError(f"cluster {self.cluster} of {self.clusters}")
        if sum(rows for _, rows in self.parts) != self.rows:
            raise ValueError(f"the parts do not add up to {self.rows} rows")
        return self


class DrawnContents(ClusterContents):
    """Samples that an expert drew in place of its cluster's."""

    STAGE = "drawn"


class NetworkContents(Contents):
    """A trained network."""

    model_config = ConfigDict(extra="forbid")
    steps: Count = 0
    """Optimiser steps that it took."""
    rows: Count = 0
    """Samples that it was trained on."""


class ExpertContents(NetworkContents):
    """The network of one cluster."""

    STAGE = "expert"


class StartContents(NetworkContents):
    """The network from which experts go on alone."""

    STAGE = "start"
    clusters: tuple[str, ...] = ()
    """Digests of the clusters that it was told by number."""


class RouterContents(NetworkContents):
    """The network that tells clusters apart."""

    STAGE = "router"
    band: tuple[float, float] | None = None
    """Between which times it decides."""


class ImportedContents(NetworkContents):
    """An expert that others trained."""

    STAGE = "imported"
    recipe: str
    """What a recipe says to start from it."""
    parameters: Count


class Alone(Frozen):
    """What a network that was distilled from a run needs to be sampled, judged and exported by itself."""

    config: dict[str, JsonValue]
    """The run of one expert that it is."""
    samples: PartitionContents
    """What is known of the samples that it draws."""


class StudentContents(NetworkContents):
    """The one network distilled from all experts."""

    STAGE = "student"
    taught_by: int = Field(ge=1)
    """How many experts."""
    alone: Alone | None = None
    rounds: int | None = Field(None, ge=1)
    """Of distillation by sites."""


class FewStepContents(NetworkContents):
    """The student that needs few steps, or a lesson on its way."""

    STAGE = "few-step"
    taught_by: int = Field(ge=1)
    alone: Alone | None = None


class SiteContents(NetworkContents):
    """What one site made in a round of distillation."""

    STAGE = "site"


class MergedContents(NetworkContents):
    """What was merged from all sites; without a round, what they start from."""

    STAGE = "merged"
    round: int | None = Field(None, ge=0)


class SampledContents(Contents):
    """Samples that were drawn from the networks of a run."""

    STAGE = "samples"
    model_config = ConfigDict(extra="forbid")
    samples: FileName
    grid: FileName | None = None
    provenance: FileName | None = None
    num: Count
    """Samples that were asked for, of which `done` are there."""
    done: Count
    experts: tuple[Count, ...]
    """Who made each of the first ones."""
    makers: dict[str, Count]
    """How many each expert made."""
    strategy: str
    strategy_asked: str
    certainty: float | None = None
    networks: int = Field(ge=1)
    asked: dict[str, tuple[str, ...]] = {}
    """What each of the first ones was asked to be: by `class` or `prompt`."""

    def at(self, folder: Path) -> dict[str, Any]:
        """Its files by their paths, and what was asked for under its own name."""
        facts = self.facts()
        names = {name: facts[name] for name in ("samples", "grid", "provenance") if facts[name]}
        paths = {key: str(folder / name) for key, name in names.items()}
        return {**facts.pop("asked"), **facts, **paths, "folder": str(folder)}


class ReportContents(Contents):
    """The page of a run."""

    STAGE = "report"
    model_config = ConfigDict(extra="forbid")
    report: FileName


ContentsT = TypeVar("ContentsT", bound=Contents)


class StartedRecord(Frozen):
    """What an unfinished stage is being made from."""

    version: Literal[1] = VERSION
    made_from: dict[str, JsonValue]


class StageRecord(Frozen):
    """The whole of `done.json`: what a finished stage is, what it was made from, and its files."""

    version: Literal[1] = VERSION
    kind: str = Field(min_length=1, max_length=40)
    made_from: dict[str, JsonValue]
    files: dict[FileName, Sha256]
    contents: Contents

    @field_validator("files")
    @classmethod
    def _not_the_record_itself(cls, files: dict[str, str]) -> dict[str, str]:
        for name in files.keys() & {"done.json", "started.json"}:
            raise ValueError(f"{name} is a file of the record itself")
        return files

    @classmethod
    def of(cls, made_from: Mapping[str, Any], files: Mapping[str, str], contents: Contents) -> "StageRecord":
        """The record of a stage with these contents."""
        return cls(kind=contents.STAGE, made_from=dict(made_from), files=dict(files), contents=contents)

    @property
    def digest(self) -> str:
        """A hash of what the stage holds: the digests of its files."""
        return digest(self.files)

    def facts(self) -> dict[str, Any]:
        """The same as plain JSON values, to be written."""
        return {**self.model_dump(mode="json", exclude={"contents"}), "contents": self.contents.facts()}

    def holding(self, kind: type[ContentsT], where: str) -> ContentsT:
        """The contents, if they are of this kind."""
        if not isinstance(self.contents, kind):
            wanted = (
                kind.STAGE if "STAGE" in kind.__dict__ else kind.__name__.removesuffix("Contents").lower()
            )
            raise RunError(
                f"{where} holds a stage of kind '{self.kind}', not '{wanted}'; give another folder"
            )
        return self.contents


def parse_record(value: object, where: str) -> StageRecord:
    """A stage's record from any JSON value; what is wrong with it is said in one line."""
    tree = versioned(value, where)
    kind = Contents.KINDS.get(str(tree.get("kind")), Contents)
    contents = validated(kind, tree.get("contents"), f"{where}: contents")
    record = validated(StageRecord, {**tree, "contents": {}}, where)
    return record.model_copy(update={"contents": contents})


def parse_started(value: object, where: str) -> StartedRecord:
    """The record of a stage that is being made."""
    return validated(StartedRecord, versioned(value, where), where)
