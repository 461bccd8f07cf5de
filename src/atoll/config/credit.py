"""How parts of a finished run are valued and samples are traced to them: [credit]."""

from typing import Annotated, Literal

from pydantic import Field

from atoll.config.digest import OPERATIONAL
from atoll.config.section import Section


class CreditConfig(Section):
    """What `atoll credit` measures."""

    num: int = Field(2000, ge=32)
    """Noisy held-out samples on which experts are asked; the error of a value falls with its root."""
    bins: int = Field(8, ge=1)
    """Parts of the time, equally likely in training, by which values are told and times are drawn."""
    seed: int | None = Field(None, ge=0)
    """Of held-out samples, times and noises; the run's by default. Publish its commitment beforehand."""
    epoch: int = Field(0, ge=0)
    """Another epoch takes other held-out samples, times and noises."""
    base: Literal["start", "moments"] = "start"
    """What parts are measured against: what all experts began with, where there is such a network, or two
    moments of the held-out samples, which nobody trained and which cost nothing to ask."""
    audit_base: Literal["start", "moments"] = "moments"
    """The same for `--audit`: its budget buys a precision of 3 % against two moments, 20 to 50 % against a
    start. Values of two bases are two games; do not change it between epochs that pay."""
    precision: float = Field(0.03, gt=0)
    """Relative standard error of each part's payment at which `--audit` asks no more."""
    budget: float = Field(0.02, gt=0)
    """What `--audit` may spend, as a share of the FLOPs of one expert's training."""
    clip: float = Field(1.5, gt=0)
    """How much farther from the base than usual an expert may go before what is beyond is not paid."""
    pool: float = Field(100.0, ge=0)
    """What an epoch pays in all, where a key is given to sign the payments with."""
    levels: int = Field(32, ge=2)
    """Noise levels at which a finished sample is looked at, to tell how likely it is under each expert."""
    calibration: int = Field(4, ge=0)
    """Samples that each part draws, by which likelihoods are made fair: an expert that is worse at everything
    would be named as the maker of nothing. Once, and kept. 0: as experts say them, unless they were made fair
    before."""
    drawn: int = Field(64, ge=16)
    """Samples that every part draws alone for `--by distance`, as [sample] says."""
    nearest: int = Field(3, ge=0)
    """Nearest training samples of each part that are named for a sample."""
    traced: int = Field(8, ge=0)
    """Samples of the run itself that are traced to parts, for its page and report."""
    batch: Annotated[int, OPERATIONAL] = Field(128, ge=1)
    """Samples per forward pass."""
