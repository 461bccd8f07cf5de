"""What a stage says of itself that chose a guidance by samples drawn with each."""

from pydantic import ConfigDict, Field

from atoll.runs.records import Contents


class GuidanceContents(Contents):
    """The guidance whose samples were nearest to the data, and how far those of each were."""

    STAGE = "guidance"
    model_config = ConfigDict(extra="forbid")
    guidance: float = Field(ge=1)
    distances: tuple[tuple[float, float], ...]
    """Pairs of a guidance and the distance of its samples, in the order in which they were tried."""
