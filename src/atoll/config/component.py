"""What others are told of what a recipe makes, and what a component tells of its data: [component]."""

from typing import Annotated

from pydantic import Field

from atoll.config.section import Section

Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+@-]{0,79}$")]
"""An owner, a licence or a tag: letters, digits, and few signs between them."""


class ComponentConfig(Section):
    """Who owns what this recipe makes, what may be done with it, and what a component tells of its data."""

    owner: Word | None = None
    """Whose data and work it is."""
    licence: Word = "unknown"
    """Of the weights, as the Hub writes it: cc0, cc-by, mit, …"""
    tags: tuple[Word, ...] = Field((), max_length=32, strict=False)
    """Words that rules may ask for, as `medical`."""
    access: tuple[Word, ...] = Field((), max_length=256, strict=False)
    """Users of `atoll serve` who alone may have it asked; everybody, if none is named."""
    about: str = Field("", max_length=2000)
    """What the data is, in words."""
    prototypes: int = Field(32, ge=1, le=256)
    """Router rows: means of groups of at least 16 different samples; fewer where there is little data."""
    epsilon: float | None = Field(None, gt=0, le=100)
    """Differential privacy of the router rows, one row for each class; the weights are not covered by it."""
    delta: float = Field(1e-6, gt=0, lt=0.1)
    """The chance that `epsilon` leaves; well below one over the number of samples."""
    samples: int = Field(128, ge=0, le=4096)
    """Samples that the finished component draws, for others to calibrate routing by; none is of the data."""
