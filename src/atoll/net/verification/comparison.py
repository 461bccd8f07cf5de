"""What an auditor reports of a replayed interval: updates beside each other, as numbers."""

from pydantic import Field

from atoll.config import Section

UNLIKE = 1e9
"""Stands for a difference that no number says: other tensors, or values that are not finite."""


class Difference(Section):
    """One update beside another."""

    relative: float = Field(ge=0)
    """||a - b|| over ||b||: 0 for the same, 1 for no update at all; weights count by their gradients."""
    cosine: float
    worst: float = Field(0.0, ge=0)
    """The largest relative difference of a single tensor, where small ones count as if of usual size."""
    tensor: str = ""
    """Whose that is."""
    plain: float = Field(0.0, ge=0)
    """The relative difference with all weights alike."""
    jump: float = Field(0.0, ge=0)
    """The largest difference of a single number, over the largest movement of one."""


class Comparison(Section):
    """A replayed interval beside the committed one."""

    equal: bool
    """Whether all is the same, bit for bit."""
    counts: bool
    """Whether steps and scales are the same."""
    kinds: dict[str, Difference]
    """By part of the state."""
    tensors: dict[str, tuple[float, float]] = Field(default_factory=dict, strict=False)
    """Relative difference and cosine of the weights, tensor by tensor, for a person to look at."""

    @property
    def relative(self) -> float:
        """The largest relative difference of a part."""
        return max(one.relative for one in self.kinds.values())

    @property
    def cosine(self) -> float:
        """The smallest cosine of a part."""
        return min(one.cosine for one in self.kinds.values())


class Report(Section):
    """The one file that an audit makes."""

    replayed: str = Field(pattern=r"^[0-9a-f]{64}$")
    """The sha256 of the state that the replay came to."""
    committed: str = Field(pattern=r"^[0-9a-f]{64}$")
    """The sha256 of the state that was handed to the auditor as the committed one."""
    comparison: Comparison
