"""What a stage says of itself that holds features of samples, as a network of ours sees them."""

from pydantic import ConfigDict, Field

from atoll.runs.records import Contents, Count, Share


class FeaturesContents(Contents):
    """What the network that experts begin with sees in every sample."""

    STAGE = "features"
    model_config = ConfigDict(extra="forbid")
    rows: Count
    width: int = Field(ge=1)
    """Numbers of one sample."""
    block: int = Field(ge=1)
    """After how many blocks of the network they are taken."""
    time: Share
    """At which noise level."""
