"""What a run promises about checks, as its manifest says: how often, by whose randomness, in which bands."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError

from atoll.errors import ConfigError, CorruptError
from atoll.net.protocol import Manifest, Numerics
from atoll.net.statements import compact
from atoll.net.verification import policy
from atoll.net.verification.bands import ROUNDING, Band, Bands, name_of
from atoll.net.verification.beacon import Beacon, BeaconSettings, ChainBeacon, DrandBeacon
from atoll.net.verification.policy import AuditPolicy
from atoll.storage.clock import Clock

BEACON = "beacon"
"""The setting that holds another beacon than the manifest's: of whoever went on with the run."""
PERIODS, ROUNDS = (10.0, 60.0), 2**21
"""Seconds from round to round of a coordinator's own beacon, the longer the longer its leases last, and how
many it has: four years where leases last two hours, eight months where they last minutes."""


INTERVALS = 8
"""Of a segment, as the manifest counts what its rates promise; of longer ones less is replayed."""


@dataclass(frozen=True)
class Rules:
    """What whoever hosts a run decides about checks."""

    audit: AuditPolicy = field(default_factory=AuditPolicy)
    bands: Bands = field(default_factory=Bands)
    period: float = 0.0
    """Seconds from round to round; 0 for as long as suits the leases."""
    rounds: int = field(default_factory=lambda: ROUNDS)
    beacon: str = ""
    """URL/HASH of a drand network, or of files with its answers; else the coordinator's own chain."""

    @cached_property
    def public(self) -> BeaconSettings | None:
        """The network that draws, if one was named; it is asked once, and refused if it does not answer."""
        return DrandBeacon.publish(self.beacon) if self.beacon else None

    def published(self, key: Ed25519PrivateKey, now: float, target: float = 0.0) -> dict[str, Any]:
        """For the manifest: rates, what they promise, escrow, bands and where randomness comes from."""
        beacon = self.public or own_beacon(key, now, self.period or period_for(target), self.rounds)
        return {
            "audit": self.audit.model_dump(mode="json"),
            "escrow_units": policy.escrow_units(self.audit),
            "promises": policy.promises(self.audit, INTERVALS),
            "bands": self.bands.model_dump(mode="json"),
            "rounding": ROUNDING.model_dump(mode="json"),
            "beacon": beacon.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class Police:
    """The same at work."""

    audit: AuditPolicy
    bands: Bands
    beacon: Beacon

    def band(self, one: Numerics, other: Numerics) -> Band | None:
        """How far two classes of arithmetic may be apart."""
        return self.bands.between(name_of(one), name_of(other))

    def may_compare(self, one: Numerics, other: Numerics) -> bool:
        """Whether a replay by one says something of work by the other."""
        return one == other or self.band(one, other) is not None


def read_bands(path: Path) -> Bands:
    """Bands that were measured between numerics classes, from a file."""
    try:
        return Bands.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give a file of bands") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path} holds no bands ({where}: {first['msg']})") from None


def period_for(target: float) -> float:
    """Seconds from round to round, where a lease lasts so many: waiting for one is hardly felt."""
    return min(PERIODS[1], max(PERIODS[0], target / 120))


def own_beacon(key: Ed25519PrivateKey, now: float, period: float, rounds: int) -> BeaconSettings:
    """A chain of hashes that begins with a secret of this key and this moment."""
    return ChainBeacon.publish(_secret(key, now), now, period, rounds)


def opened(
    manifest: Manifest, key: Ed25519PrivateKey, clock: Clock, beacon: Mapping[str, Any] | None = None
) -> Police | None:
    """The checks that a manifest promises; None where it promises none.

    `beacon` is another than the manifest's, of whoever went on with the run under another key.
    """
    tree = manifest.policy
    if "audit" not in tree:
        return None
    try:
        settings = BeaconSettings.model_validate_json(compact(beacon or tree.get("beacon")))
        source: Beacon = (
            ChainBeacon(_secret(key, settings.genesis), settings, clock.date)
            if settings.url is None
            else DrandBeacon(settings, now=clock.date)
        )
        return Police(
            AuditPolicy.model_validate_json(compact(tree["audit"])),
            Bands.model_validate_json(compact(tree.get("bands") or {})),
            source,
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise CorruptError(f"the manifest's policy cannot be read ({first['msg']})") from None


def _secret(key: Ed25519PrivateKey, moment: float) -> bytes:
    return hashlib.sha256(b"atoll beacon v1" + key.private_bytes_raw() + repr(moment).encode()).digest()
