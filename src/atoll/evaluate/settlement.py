"""What an epoch pays the parts of a run, as a signed file that goes on from the one before."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from atoll.credit import payment, signature
from atoll.credit.payment import Account
from atoll.credit.shares import routing_shares
from atoll.errors import CorruptError
from atoll.evaluate import evaluation
from atoll.evaluate.intervals import NORMAL
from atoll.runs import CREDIT, Run, read_json, read_stamped, write_json


def settle(run: Run, record: Mapping[str, Any], key: Path) -> Path:
    """Pay the epoch of a record by its audited values, and write that down, signed."""
    epoch, folder = run.config.credit.epoch, (run.path / CREDIT).parent
    public = signature.public_key(key)
    before = _accounts(epoch_file(folder, epoch - 1), public)
    values = {part["part"]: _value(part["audited"]) for part in record["parts"]}
    paid = payment.settle(run.config.credit.pool, values, dict.fromkeys(values, 1.0), before)
    document = {
        "run": run.config.name,
        "epoch": epoch,
        "pool": run.config.credit.pool,
        "commitment": record["commitment"],
        "held_out": record["held_out"],
        "networks": record["networks"],
        "values": {name: {"value": value, "error": error} for name, (value, error) in values.items()},
        "pay": dict(paid.pay),
        "postings": payment.postings(paid.pay, f"{run.config.name}/{epoch}"),
        "accounts": {name: asdict(account) for name, account in paid.accounts.items()},
    }
    path = epoch_file(folder, epoch)
    write_json(path, signature.signed(document, key))
    return path


def royalties(
    run: Run, weights: Sequence[Sequence[float]], display: Sequence[float] | None = None
) -> list[float] | None:
    """How the price of one picture is shared, summing to one: by display shares, scaled by audited values.

    `weights` are the router's, (times, parts), of that picture, which count where nobody knows `display`; a
    part's usual share is its mean over held-out samples. A part that is gone has nothing. None where these
    networks were not valued yet.
    """
    path = run.path / CREDIT
    record = read_stamped(path) if path.is_file() else {}
    if record.get("networks") != evaluation.networks(run):
        return None
    known = display is not None and all("display" in part for part in record["parts"])
    routed = routing_shares(torch.tensor(weights)[:, None])[0].tolist()
    shown = display if known and display is not None else routed
    by_number = {part.get("number", place): part for place, part in enumerate(record["parts"])}
    names = ("audited", "display" if known else "routed")
    audited, usual = (
        [by_number[k][name]["value"] if k in by_number else 0.0 for k in range(len(shown))] for name in names
    )
    return payment.royalties(1.0, shown, audited, usual)


def epoch_file(folder: Path, epoch: int) -> Path:
    """The file of an epoch's payments."""
    return folder / f"epoch-{epoch:05d}.json"


def audited(record: Mapping[str, Any]) -> dict[int, tuple[float, float]]:
    """What is paid for, of each part by its number: value and standard error."""
    return {part.get("number", place): _value(part["audited"]) for place, part in enumerate(record["parts"])}


def _value(audited: Mapping[str, float]) -> tuple[float, float]:
    """A value and its standard error, off its interval."""
    return audited["value"], (audited["high"] - audited["low"]) / (2 * NORMAL)


def _accounts(path: Path, public: str) -> dict[str, Account]:
    """The accounts after the epoch before, if there was one and its file is what was signed."""
    if not path.is_file():
        return {}
    document = signature.verified(read_json(path), public, str(path))
    try:
        return {name: Account(**account) for name, account in document["accounts"].items()}
    except (KeyError, TypeError, AttributeError):
        raise CorruptError(f"{path} holds no accounts; restore it, or move it away") from None
