"""Who made it, and what each part is worth."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.options import AsJson, RunFolder, app
from atoll.cli.output import bar, tell

if TYPE_CHECKING:
    from atoll.runs import Run


class Worth(StrEnum):
    """What parts are measured by."""

    loss = "loss"
    distance = "distance"


Post = Callable[[int, int, dict[int, tuple[float, float]]], tuple[dict[str, Any], str]]
"""Pays an epoch by its number, seed and values; what was paid, and that in a sentence."""


@app.command()
def credit(
    run_folder: RunFolder,
    picture: Annotated[
        Path | None,
        typer.Option(help="Instead: which parts would make this picture (or .npy), whoever made it."),
    ] = None,
    by: Annotated[
        Worth,
        typer.Option(
            help="Worth in the loss on held-out samples, or, by samples of each part, in a distance."
        ),
    ] = Worth.loss,
    key: Annotated[
        Path | None, typer.Option(help="Also pay the epoch: an Ed25519 key (PEM) that signs the payments.")
    ] = None,
    into_ledger: Annotated[
        bool,
        typer.Option("--ledger", help="Also pay the epoch by the ledger of a run that was hosted here."),
    ] = False,
    database: Annotated[
        str, typer.Option(help="Of the ledger, as `atoll host` has it; by default in the run's folder.")
    ] = "",
    store: Annotated[str, typer.Option(help="Where `atoll host` publishes the log, if elsewhere.")] = "",
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Only what parts are paid for, each at home, within credit.budget; with --key, paid.",
        ),
    ] = False,
    brought: Annotated[
        list[str],
        typer.Option(
            "--held-out", metavar="NUMBER=SOURCE", help="Samples of an added part that nobody trained on."
        ),
    ] = [],  # noqa: B006
    overrides: Annotated[
        list[str], typer.Option("--set", metavar="credit.KEY=VALUE", help="Change a key of [credit].")
    ] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """What each expert is worth on held-out samples, with intervals; or who would make a given picture."""
    from atoll.credit import signature
    from atoll.errors import ConfigError
    from atoll.evaluate import credit as room
    from atoll.evaluate import lost, settlement, values
    from atoll.pages import credit as page
    from atoll.pages import report
    from atoll.sampling.opening import open_run

    published = open_run(run_folder, samples=True)
    run = published.changed(overrides)
    post = ledger_of(published, database, store) if into_ledger else None
    if by is Worth.distance and (audit or picture is not None or key is not None or into_ledger or brought):
        raise ConfigError(
            "--by distance draws samples of each part and tells no more: it pays nobody, see docs/credit.md; "
            "leave out --audit, --picture, --key, --ledger and --held-out"
        )
    if key is not None:
        signature.public_key(key)  # refuses what is no key before anything is measured
    with bar(as_json) as progress:
        if picture is not None:
            traced = room.trace_file(run, picture, progress)
            path = page.write_traced(run, picture, traced)
            tell(as_json, {**traced, "page": str(path)}, f"{room.table(traced)}\nWrote {path}")
            return
        if by is Worth.distance:
            change = lost.measure(run, None if progress is None else partial(progress, "samples drawn"))
            path = page.write_distance(run, change)
            tell(as_json, {**change, "page": str(path)}, f"{lost.table(change)}\nWrote {path}")
            return
        if audit:
            record = room.audit(run, progress, by_number(brought))
        else:
            record = room.value(run, progress, by_number(brought))
    lines = [values.paid_table(record) if audit else values.table(record)]
    facts = dict(record)
    if not audit:
        facts["page"] = str(page.write_credit(run, record))
        report.write_again(run)
    if key is not None:
        facts["payments"] = str(settlement.settle(run, record, key))
    lines += [f"Wrote {facts[name]}" for name in ("page", "payments") if name in facts]
    if post is not None:
        facts["ledger"], sentence = post(record["epoch"], record["seed"], settlement.audited(record))
        lines.append(sentence)
    tell(as_json, facts, "\n".join(lines))


def ledger_of(run: "Run", database: str, store: str) -> Post:
    """How an epoch of a run is paid by its coordinator's ledger; it must be there."""
    from atoll.net import require_libraries

    require_libraries()
    from atoll.net import paying
    from atoll.net.host import Choices

    choices = Choices(database=database, store=store)
    paying.require_ledger(run, choices)

    def post(epoch: int, seed: int, values: dict[int, tuple[float, float]]) -> tuple[dict[str, Any], str]:
        posted = paying.post(run, paying.Valued(epoch, seed, values), choices)
        return posted, paying.sentence(posted)

    return post


def by_number(brought: list[str]) -> dict[int, str]:
    """What `--held-out NUMBER=SOURCE` says."""
    from atoll.errors import ConfigError

    pairs = [one.partition("=") for one in brought]
    for number, _, source in pairs:
        if not (number.isdecimal() and source):
            raise ConfigError("--held-out takes NUMBER=SOURCE, the number of a part and samples of its data")
    return {int(number): source for number, _, source in pairs}
