"""`atoll host`: a run that strangers' machines work on."""

import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.options import AsJson, Overrides, app
from atoll.cli.output import tell

if TYPE_CHECKING:
    from atoll.net.host import Hosted

LOOK = 2.0
"""Seconds between two looks at how the run stands."""


@app.command()
def host(
    recipe: Annotated[
        Path | None, typer.Argument(help="A TOML file that says what the run is; see recipes/.")
    ] = None,
    source: Annotated[
        str,
        typer.Option("--from", metavar="URL|FOLDER", help="Go on with a run whose coordinator is gone."),
    ] = "",
    overrides: Overrides = [],  # noqa: B006 - typer reads it, nobody writes it
    database: Annotated[
        str, typer.Option(help="A file of SQLite, or postgresql://…; by default in the run's folder.")
    ] = "",
    store: Annotated[str, typer.Option(help="A folder, s3://…, gs://… or az://… for files.")] = "",
    address: Annotated[
        str, typer.Option("--host", help="The address to listen at; by default this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes any that is free.")] = 8000,
    urls: Annotated[
        list[str], typer.Option("--url", help="By which workers reach it; several if there are.")
    ] = [],  # noqa: B006
    price: Annotated[int, typer.Option(help="Milli-credits for 10^12 FLOPs.")] = 1000,
    every: Annotated[int, typer.Option(help="Steps between two hashes of a state; 0 chooses.")] = 0,
    minutes: Annotated[float, typer.Option(help="For how long one lease should last.")] = 120.0,
    quorum: Annotated[
        int, typer.Option(help="Accounts that must agree on a share of data; 1 among friends.")
    ] = 2,
    audits: Annotated[
        bool | None,
        typer.Option(
            "--audits/--no-audits",
            help="Have others replay trainings: all at first, then 6 % of segments, so that cheating does "
            "not pay; by default unless quorum is 1.",
        ),
    ] = None,
    release: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of segments that are replayed as a whole before the end. 1: no false step is in the "
            "model, for as much work again; 0: an interval of each, which of eight false ones misses seven.",
        ),
    ] = 1.0,
    bands: Annotated[
        Path | None,
        typer.Option(
            help="A file of differences that are honest between kinds of machines; see docs/trust.md."
        ),
    ] = None,
    beacon: Annotated[
        str,
        typer.Option(help="URL/HASH of a drand network that draws audits; by default the host's own chain."),
    ] = "",
    licence: Annotated[str, typer.Option(help="Of the data, for workers to read before they download.")] = "",
    linger: Annotated[float, typer.Option(help="Seconds for which a finished run is still served.")] = 30.0,
    moved_to: Annotated[
        list[str], typer.Option(help="Hand out no more work, and tell workers that the run is there now.")
    ] = [],  # noqa: B006
    tls_cert: Annotated[str, typer.Option(help="A certificate file, where no proxy ends TLS.")] = "",
    tls_key: Annotated[str, typer.Option(help="Its key.")] = "",
    as_json: AsJson = False,
) -> None:
    """Publish a run and hand out its work until it is finished."""
    from atoll import config
    from atoll.errors import ConfigError
    from atoll.net import require_libraries
    from atoll.runs import Run

    require_libraries()
    from atoll.net import host as hosting
    from atoll.net import pages, restore
    from atoll.net.narrating import Narrator
    from atoll.net.policing import Rules, read_bands
    from atoll.net.telling import telling
    from atoll.net.verification.bands import Bands
    from atoll.net.verification.policy import AuditPolicy

    narrators, screen, looked = list[Narrator](), ExitStack(), [0.0]

    def ready(url: str, hosted: "Hosted") -> None:
        facts = {"address": url, "run": str(hosted.run.path), "manifest": hosted.coordinator.run}
        tell(as_json, facts, f"Hosting {hosted.run.path} at {url}; workers: atoll join {url} (Ctrl-C stops)")
        sys.stdout.flush()
        if not as_json and not hosted.coordinator.moved:
            narrators.append(Narrator(screen.enter_context(telling()), hosted))

    def look() -> None:
        if narrators and time.monotonic() >= looked[0] + LOOK:
            looked[0] = time.monotonic()
            narrators[0].look()

    choices = hosting.Choices(
        database=database,
        store=store,
        addresses=tuple(urls),
        price=price,
        every=every,
        target=minutes * 60,
        quorum=quorum,
        licence=licence,
        linger=linger,
        moved=tuple(moved_to),
        audits=audits,
        rules=Rules(
            AuditPolicy(release=release), Bands() if bands is None else read_bands(bands), beacon=beacon
        ),
    )
    if (recipe is None) == (not source):
        raise ConfigError("give a recipe, or --from and where the history of a run is")
    with (
        Run.begun(config.load(recipe, overrides), recipe)
        if recipe is not None
        else nullcontext(restore.take_over(source, choices))
    ) as run:
        tls = (tls_cert, tls_key) if tls_cert else None
        with screen:
            finished = hosting.serve(
                run, choices, address, port, tls=tls, ready=ready, look=look, pages=pages.ROUTERS
            )
        state = "finished" if finished else "stopped; run the same command again to go on"
        tell(as_json, {"run": str(run.path), "finished": finished}, f"{run.path} is {state}")
