"""What a stage says of itself that chose guidance and extrapolation by samples drawn with each."""

from typing import Any

from pydantic import ConfigDict, Field

from atoll.config import SampleConfig
from atoll.runs.records import Contents


class GuidanceContents(Contents):
    """The guidance whose samples were nearest to the data, and how far those of each were."""

    STAGE = "guidance"
    model_config = ConfigDict(extra="forbid")
    guidance: float = Field(ge=1)
    distances: tuple[tuple[float, float], ...]
    """Pairs of a guidance and the distance of its samples, in the order in which they were tried."""
    extrapolate: float = Field(1.0, ge=0)
    extrapolations: tuple[tuple[float, float], ...] = ()
    """The same for how far experts are taken from what they began with, which is tried first."""

    def settle(self, sample: SampleConfig) -> SampleConfig:
        """The settings with what was chosen in the place of what there was to choose from."""
        chosen: dict[str, Any] = {"guidances": (), "extrapolations": ()}
        chosen |= {"guidance": self.guidance} if sample.guidances else {}
        chosen |= {"extrapolate": self.extrapolate} if sample.extrapolations else {}
        return sample.model_copy(update=chosen)
