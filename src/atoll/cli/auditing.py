"""`atoll audit`: a stranger's check of a run's history."""

import time
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import AsJson, app
from atoll.cli.output import bar, tell


@app.command()
def audit(
    address: Annotated[
        str,
        typer.Argument(
            metavar="URL|FOLDER", help="A coordinator or mirror, s3://…, or a folder of artifacts."
        ),
    ],
    key: Annotated[
        str | None, typer.Option(help="The log's public key, from elsewhere than the log itself.")
    ] = None,
    since: Annotated[
        Path | None, typer.Option(help="A checkpoint that you saved: the log must go on from it.")
    ] = None,
    receipts: Annotated[
        Path | None, typer.Option(help="A folder of receipts (*.json) that must have been kept.")
    ] = None,
    witness: Annotated[
        list[str], typer.Option("--witness", metavar="NAME=KEY", help="A witness whose signature you know.")
    ] = [],  # noqa: B006
    replay: Annotated[int, typer.Option(help="So many segments, drawn at random, are trained again.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Draw the same segments again.")] = None,
    save: Annotated[
        Path | None, typer.Option(help="Keep today's checkpoint here, for --since another day.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every signature, proof, lease, verdict, posting and file of a run; exit code 1 if one fails."""
    from atoll.net import require_libraries

    require_libraries()
    from atoll.net import audit as room
    from atoll.net.sources import open_source

    source = open_source(address)
    asked = room.asked(key, since, receipts, witness, replay, seed, time.time())
    with bar(as_json) as report:
        page = room.audit(source, asked, report)
    if save is not None:
        save.write_bytes(source.log("checkpoint") or b"")
    tell(as_json, page.facts, page.text)
    raise typer.Exit(0 if page.holds else 1)
