"""`atoll join`: lend this machine to a run of strangers."""

import os
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import AsJson, app
from atoll.cli.output import tell


@app.command()
def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the run's coordinator is: https://….")],
    once: Annotated[bool, typer.Option("--once", help="Do one unit of work and end.")] = False,
    test: Annotated[
        bool, typer.Option("--test", help="Do one unit twice and compare; earns nothing.")
    ] = False,
    hours: Annotated[str, typer.Option(help="When to work, by the clock here: 22-8.")] = "0-24",
    idle: Annotated[
        bool, typer.Option("--idle", help="Work only while nobody else uses the machine.")
    ] = False,
    gpus: Annotated[int | None, typer.Option(min=0, help="How many GPUs to use; by default all.")] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="How many cores to use; by default all.")] = None,
    disk: Annotated[float | None, typer.Option(min=0, help="Gigabytes to use for files at most.")] = None,
    mbit: Annotated[float, typer.Option(min=0, help="Megabits a second to use; 0 for all there are.")] = 0.0,
    home: Annotated[
        Path | None,
        typer.Option(help="Where key and files are; by default $ATOLL_HOME, or .atoll in your home."),
    ] = None,
    nickname: Annotated[str, typer.Option(help="What others see beside your account.")] = "",
    recover: Annotated[
        bool, typer.Option("--recover", help="Take the account of a recovery phrase, which is asked for.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Lend this machine to a run: it asks for work, does it offline, and hands it in while there is any."""
    from atoll.net import require_libraries

    require_libraries()
    from atoll.net import joining, limits, trial
    from atoll.net.telling import telling
    from atoll.runs import stop_requests

    phrase = typer.prompt("The 24 words", hide_input=True, err=True) if recover else ""
    allowed = limits.Limits(limits.Hours.parse(hours), idle, gpus, cpus, disk, mbit)
    folder = home or Path(os.environ.get("ATOLL_HOME", Path.home() / ".atoll"))
    with stop_requests() as stopping, telling() as teller:
        lent = joining.Joining(url, folder, teller, allowed, stopping, phrase, nickname)
        answer = trial.trial(lent) if test else joining.join(lent, once=once)
    tell(as_json, answer, str(answer["sentence"]) if test else joining.sentence(answer))
    if test and (answer["same"] is False or answer.get("faults")):
        raise typer.Exit(1)
