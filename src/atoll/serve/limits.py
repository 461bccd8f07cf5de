"""What a server lets a request ask for, and how much it takes on at once."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atoll.config import assignments, did_you_mean
from atoll.errors import ConfigError

Count = Annotated[int, Field(ge=1)]


class Limits(BaseModel):
    """The limits of one server; `atoll serve --limit KEY=VALUE` changes one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num: Count = 1024
    """Samples of one request."""
    steps: Count = 1000
    """Steps from noise to data."""
    seconds: Annotated[float, Field(gt=0)] = 600.0
    """From the moment a request is accepted until it must be answered."""
    body: Count = 262_144
    """Bytes of a request."""
    queue: Count = 512
    """Requests that are accepted and not yet answered; the next one is told to come back."""
    waiting: Count = 16_384
    """Samples that are accepted and not yet done."""
    rows: Count = 512
    """Samples that one step moves, if they are all of one user."""
    grace: Annotated[float, Field(ge=0)] = 30.0
    """Seconds that requests under way are given when the server is asked to stop."""
    kept: Count = 64 * 2**20
    """Bytes of answers that are kept for those who ask again, by idempotency key or by address."""


def limits(changes: Sequence[str] = ()) -> Limits:
    """The defaults with what was said: `num=64`."""
    values = assignments(changes)
    for name in values:
        if name not in Limits.model_fields:
            near = did_you_mean(name, Limits.model_fields)
            raise ConfigError(
                f"there is no limit '{name}'; {near}limits are {', '.join(Limits.model_fields)}"
            )
    try:
        return Limits.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(f"limit {problem['loc'][0]}: {problem['msg']}") from None
