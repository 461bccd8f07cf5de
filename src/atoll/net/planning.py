"""What a coordinator that knows nothing of stages asks of a run, and where it writes down what is true."""

from collections.abc import Mapping
from typing import Any, Protocol

from sqlalchemy.orm import Session

from atoll.net.protocol import File, Unit
from atoll.net.statements import Signer


class Plan(Protocol):
    """A run as a function of the files that there are of it."""

    def ready(self, table: Mapping[str, File]) -> list[Unit]:
        """All units that can be worked on now, also those that somebody works on."""

    def finished(self, table: Mapping[str, File]) -> bool:
        """Whether everything is there."""

    def shortened(self, unit: Unit, steps: int) -> Unit:
        """The same unit with fewer steps, if it has any."""

    def state(self, unit: Unit) -> int:
        """Bytes of a training's state, also before there is one; 0 where nobody knows."""

    def allows(self, unit: Unit, path: str) -> bool:
        """Whether a unit may make, replace or remove this file."""


class Book(Protocol):
    """Where facts and credit are written down, in the transaction that makes them true."""

    def note(self, session: Session, kind: str, facts: Mapping[str, Any], at: float) -> int | None:
        """A fact of the run; its index, if it has one."""

    @property
    def signer(self) -> Signer | None:
        """Who states facts, if somebody does."""

    def credit(
        self,
        session: Session,
        event: str,
        account: str,
        amount: int,
        lineage: str,
        submission: str,
        at: float,
    ) -> None:
        """Milli-credits for work that was accepted, once for every event."""

    def forfeit(
        self, session: Session, event: str, account: str, lineage: str, submission: str, at: float
    ) -> None:
        """What an account holds in escrow of a lineage goes back."""

    def escrow(self, session: Session, account: str, lineage: str) -> int:
        """What an account holds in escrow of a lineage."""

    def due(self, session: Session, account: str, lineage: str, keep: int, before: float) -> int:
        """What `vest` would pay out."""

    def vest(self, session: Session, account: str, lineage: str, keep: int, before: float, at: float) -> int:
        """Pay out escrow but for that of the newest `keep` units, and of none after `before`; how much."""


class Silent:
    """A book that nobody keeps: for runs among friends, and for tests that look at something else."""

    signer: Signer | None = None

    def note(self, session: Session, kind: str, facts: Mapping[str, Any], at: float) -> int | None:
        """Nothing."""
        return None

    def credit(
        self,
        session: Session,
        event: str,
        account: str,
        amount: int,
        lineage: str,
        submission: str,
        at: float,
    ) -> None:
        """Nothing."""

    def forfeit(
        self, session: Session, event: str, account: str, lineage: str, submission: str, at: float
    ) -> None:
        """Nothing."""

    def escrow(self, session: Session, account: str, lineage: str) -> int:
        """Nothing."""
        return 0

    def due(self, session: Session, account: str, lineage: str, keep: int, before: float) -> int:
        """Nothing."""
        return 0

    def vest(self, session: Session, account: str, lineage: str, keep: int, before: float, at: float) -> int:
        """Nothing."""
        return 0
