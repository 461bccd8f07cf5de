"""Randomness that is fixed after a commitment: a public beacon, or a chain of hashes for private runs.

A worker commits to its states; the round that comes next says what is asked of it. Neither worker nor
coordinator may be able to choose it, and anybody must be able to check it afterwards.
"""

import functools
import hashlib
import itertools
import json
import math
import urllib.request
from bisect import bisect_right
from collections.abc import Callable
from typing import Protocol

from pydantic import Field, ValidationError

from atoll.config import Section
from atoll.errors import AtollError
from atoll.net.verification import drand

Hex = str
SCHEMES = ("https://", "http://", "file:///")
SECONDS, LONGEST = 10.0, 1 << 16
"""How long a beacon may take to answer, and how many bytes."""
KNOWN = 256
"""Values of one chain that are remembered, so that the next is followed to the nearest and not to the end."""
HEX = r"^[0-9a-f]{64}$"


class BeaconError(AtollError):
    """A beacon has no such round yet, or what it says is not what it should say."""


class Draw(Section):
    """The value of one round and what shows that it is the right one; kept in the log."""

    round: int = Field(ge=1)
    value: Hex = Field(pattern=HEX)
    proof: str = Field("", max_length=1024, pattern=r"^[0-9a-f]*$")
    """drand's signature of the round; of a chain of hashes the value is its own proof."""

    @property
    def bytes(self) -> bytes:
        """The value as randomness."""
        return bytes.fromhex(self.value)


class BeaconSettings(Section):
    """Which beacon a run uses; part of the manifest."""

    url: str | None = None
    """Where a drand network answers; without one, the coordinator's own chain of hashes."""
    anchor: Hex = Field("0" * 64, pattern=HEX)
    """The end of the chain, published before its first round; or the hash that names a drand network."""
    genesis: float = 0.0
    """Seconds since 1970 of round 1."""
    period: float = Field(3.0, gt=0)
    """Seconds from round to round."""
    rounds: int = Field(2**20, ge=1)
    """How many rounds an own chain has."""
    key: str = Field("", max_length=192, pattern=r"^[0-9a-f]*$")
    """A drand network's, if it signs in a way that can be checked here; its name pins it."""

    def round_after(self, moment: float) -> int:
        """The first round whose value nobody knew at this time."""
        return max(1, math.floor((moment - self.genesis) / self.period) + 2)

    def time_of(self, number: int) -> float:
        """When a round's value comes out."""
        return self.genesis + (number - 1) * self.period


class Beacon(Protocol):
    """Values by rounds."""

    settings: BeaconSettings

    def draw(self, number: int) -> Draw:
        """The value of a round; a BeaconError while it has none."""


def _hashed(value: bytes, times: int = 1) -> bytes:
    for _ in range(times):
        value = hashlib.sha256(value).digest()
    return value


KEPT = 1024
"""Rounds of an own chain from one remembered value to the next."""


@functools.lru_cache(maxsize=2)
def _values(secret: bytes, rounds: int) -> tuple[bytes, ...]:
    """Of a chain from its secret to its anchor, every so many: who publishes it opens it next."""
    counts = [KEPT] * (rounds // KEPT) + [rounds % KEPT] * (rounds % KEPT > 0)
    return tuple(itertools.accumulate(counts, _hashed, initial=secret))


class ChainBeacon:
    """A private run's own: each value is the preimage of the one before, the first of the published anchor.

    Whoever holds the secret knows all rounds, but after the manifest nobody can change one.
    """

    def __init__(self, secret: bytes, settings: BeaconSettings, now: Callable[[], float]) -> None:
        self.settings, self._now = settings, now
        self._values = _values(secret, settings.rounds)
        if self._values[-1].hex() != settings.anchor:
            raise BeaconError("the secret is not that of the published beacon; restore the coordinator's key")

    @classmethod
    def publish(
        cls, secret: bytes, genesis: float, period: float = 3.0, rounds: int = 2**20
    ) -> BeaconSettings:
        """What the manifest says of a chain that begins with this secret."""
        anchor = _values(secret, rounds)[-1].hex()
        return BeaconSettings(anchor=anchor, genesis=genesis, period=period, rounds=rounds)

    def draw(self, number: int) -> Draw:
        """The value of a round whose time has come."""
        if not 1 <= number <= self.settings.rounds:
            raise BeaconError(f"the beacon has rounds 1 to {self.settings.rounds}; {number} is none of them")
        if self._now() < self.settings.time_of(number):
            raise BeaconError(f"round {number} is not out yet")
        times = self.settings.rounds - number
        kept = times // KEPT
        return Draw(round=number, value=_hashed(self._values[kept], times - kept * KEPT).hex())


class DrandBeacon:
    """A drand network's, over HTTP; `get` fetches a URL's body.

    Holds it to its own arithmetic, that the randomness is the hash of the signature, and to its signature
    where there is a library for it; else that is kept for whoever has one.
    """

    def __init__(
        self,
        settings: BeaconSettings,
        get: Callable[[str], bytes] | None = None,
        now: Callable[[], float] = lambda: math.inf,
    ) -> None:
        if settings.url is None:
            raise BeaconError("a drand beacon needs the address of its network")
        self.settings, self._get, self._now = settings, get or fetched, now
        self._newest: Draw | None = None

    @classmethod
    def publish(cls, address: str, get: Callable[[str], bytes] | None = None) -> BeaconSettings:
        """What the manifest says of the network at an address, which ends with the hash that names it."""
        url, _, anchor = address.rstrip("/").rpartition("/")
        try:
            about = json.loads((get or fetched)(f"{url}/{anchor}/info"))
            if about.get("hash", anchor) != anchor:
                raise ValueError("it is another network")
            return BeaconSettings(
                url=url,
                anchor=anchor,
                genesis=float(about["genesis_time"]),
                period=float(about["period"]),
                key=drand.key_of(about, anchor),
            )
        except (OSError, ValueError, TypeError, KeyError, AttributeError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise BeaconError(
                f"no beacon answers at {address} ({reason}); give URL/HASH of a drand network"
            ) from None

    def draw(self, number: int) -> Draw:
        """Ask for a round whose time has come; of several who need the same one, once."""
        if self._now() < self.settings.time_of(number):
            raise BeaconError(f"round {number} is not out yet")
        if self._newest is None or self._newest.round != number:
            self._newest = self._asked(number)
        return self._newest

    def _asked(self, number: int) -> Draw:
        try:
            body = self._get(f"{self.settings.url}/{self.settings.anchor}/public/{number}")
            answer = json.loads(body)
            draw = Draw(round=answer["round"], value=answer["randomness"], proof=answer["signature"])
        except (OSError, ValueError, TypeError, KeyError, ValidationError) as error:
            raise BeaconError(
                f"the beacon gave no round {number} ({error}); it is asked again later"
            ) from None
        check(self.settings, draw, number)
        return draw


def fetched(url: str) -> bytes:
    """What is at an address: of a network, or of files that somebody copies its answers into."""
    if not url.startswith(SCHEMES):
        raise OSError(f"a beacon's address begins with {', '.join(SCHEMES)}")
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        data: bytes = answer.read(LONGEST)
        return data


def check(settings: BeaconSettings, draw: Draw, number: int) -> None:
    """Whether a recorded value is that of the round; a BeaconError says why not."""
    if draw.round != number:
        raise BeaconError(f"round {draw.round} was recorded in the place of round {number}")
    if settings.url is not None:
        if hashlib.sha256(bytes.fromhex(draw.proof)).hexdigest() != draw.value:
            raise BeaconError(f"the value of round {number} is not the hash of its signature")
        if settings.key and drand.is_here() and not drand.is_signed(settings.key, number, draw.proof):
            raise BeaconError(f"round {number} is not signed by the beacon's network")
    elif number > settings.rounds or not _leads_to(settings.anchor, draw.value, number):
        raise BeaconError(f"the value of round {number} does not lead to the beacon's published anchor")


_followed: dict[Hex, list[tuple[int, Hex]]] = {}
"""Rounds of a chain, by its end, whose values were followed to it."""


def _leads_to(anchor: Hex, value: Hex, number: int) -> bool:
    """Whether a value leads to the end of a chain, or to a value that does: years of rounds add up."""
    known = _followed.setdefault(anchor, [(0, anchor)])
    place = bisect_right(known, (number, "g"))
    nearest, expected = known[place - 1]
    if _hashed(bytes.fromhex(value), number - nearest).hex() != expected:
        return False
    if nearest != number:
        known.insert(place, (number, value))
        del known[1 : max(1, len(known) - KNOWN)]
    return True


def seed_of(draw: Draw, recipe: str) -> int:
    """The seed of a run whose recipe (by digest) was published before this round: nobody has chosen it."""
    return int.from_bytes(hashlib.sha256(draw.bytes + recipe.encode()).digest()[:4], "big") % 2**31
