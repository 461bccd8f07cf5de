"""States that a worker keeps of what it handed in, to show those of an interval that is replayed."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from atoll.net.client import Client
from atoll.net.home import Held, Home
from atoll.net.protocol import File, Receipt, Result, Shown
from atoll.net.verification.asking import state_name
from atoll.net.work import KEPT
from atoll.runs import file_digest, read_json, write_json

PLACE = "place.json"


class Showcase:
    """Folders by submission, as long as a result can be asked about."""

    def __init__(self, home: Home) -> None:
        self._folder = home.folder / "shown"

    def keep(self, held: Held, result: Result, submission: str) -> None:
        """Keep the states of a segment that was handed in."""
        end = state_name(held.offer.unit.last)
        last = next((file.path for file in result.outputs if file.path.endswith(f"/{end}")), None)
        states, target = held.folder / KEPT, self._folder / submission
        if last is None or not states.is_dir() or target.exists():
            return
        write_json(states / PLACE, {"folder": last.removesuffix(f"/{end}")})
        self._folder.mkdir(exist_ok=True)
        states.rename(target)

    def submissions(self) -> Iterator[str]:
        """Of which there is something here."""
        if self._folder.is_dir():
            yield from sorted(path.name for path in self._folder.iterdir())

    def show(self, client: Client, receipt: Receipt) -> list[int]:
        """Upload the states that are asked for, if they are here; their steps."""
        place = self._folder / receipt.submission
        steps = [step for step in receipt.wanted if (place / state_name(step)).is_file()]
        if not steps or len(steps) < len(receipt.wanted):
            return []
        folder = str(read_json(place / PLACE)["folder"])
        files = [_described(place / state_name(step), folder) for step in steps]
        for file, step in zip(files, steps, strict=True):
            client.upload(place / state_name(step), file)
        client.show(receipt.submission, Shown(files=tuple(files)))
        return steps

    def forget(self, submission: str) -> None:
        """Nobody will ask any more."""
        shutil.rmtree(self._folder / submission, ignore_errors=True)


def _described(path: Path, folder: str) -> File:
    return File(path=f"{folder}/{path.name}", sha256=file_digest(path), size=path.stat().st_size)
