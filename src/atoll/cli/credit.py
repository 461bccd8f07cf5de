"""Who made it, and what each part is worth."""

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import AsJson, RunFolder, app
from atoll.cli.output import bar, tell


@app.command()
def credit(
    run_folder: RunFolder,
    picture: Annotated[
        Path | None,
        typer.Option(help="Instead: which parts would make this picture (or .npy), whoever made it."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Also pay the epoch: an Ed25519 key (PEM) that signs the payments.")
    ] = None,
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
    from atoll.evaluate import credit as room
    from atoll.evaluate import settlement, values
    from atoll.pages import credit as page
    from atoll.pages import report
    from atoll.sampling.opening import open_run

    run = open_run(run_folder, samples=True).changed(overrides)
    with bar(as_json) as progress:
        if picture is not None:
            traced = room.trace_file(run, picture, progress)
            path = page.write_traced(run, picture, traced)
            tell(as_json, {**traced, "page": str(path)}, f"{room.table(traced)}\nWrote {path}")
            return
        if audit:
            record = room.audit(run, progress, by_number(brought))
            paths = [settlement.settle(run, record, key)] if key is not None else []
            facts = {**record, **({"payments": str(paths[0])} if paths else {})}
            tell(as_json, facts, "\n".join([values.paid_table(record), *(f"Wrote {path}" for path in paths)]))
            return
        record = room.value(run, progress, by_number(brought))
    paths = [page.write_credit(run, record)]
    report.write_again(run)
    paths += [settlement.settle(run, record, key)] if key is not None else []
    facts = {**record, "page": str(paths[0]), **({"payments": str(paths[1])} if key is not None else {})}
    tell(as_json, facts, "\n".join([values.table(record), *(f"Wrote {path}" for path in paths)]))


def by_number(brought: list[str]) -> dict[int, str]:
    """What `--held-out NUMBER=SOURCE` says."""
    from atoll.errors import ConfigError

    pairs = [one.partition("=") for one in brought]
    for number, _, source in pairs:
        if not (number.isdecimal() and source):
            raise ConfigError("--held-out takes NUMBER=SOURCE, the number of a part and samples of its data")
    return {int(number): source for number, _, source in pairs}
