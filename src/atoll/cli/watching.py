"""`atoll watch`: a run in a browser, while it is made."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import AsJson, app
from atoll.cli.output import tell


@app.command()
def watch(
    run_folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's folder, finished or not, or s3://….")
    ],
    host: Annotated[
        str, typer.Option(help="The address to listen at; by default this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes any that is free.")] = 8001,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="ATOLL_TOKEN", help="What whoever looks must know: the browser asks for it as a password."
        ),
    ] = None,
    anybody: Annotated[
        bool, typer.Option("--open", help="Listen beyond this machine without a token.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Every stage and job of a run in a browser, while it is made."""
    from atoll.serve import require_libraries

    require_libraries()
    from atoll.serve import watching

    def ready(url: str) -> None:
        tell(
            as_json,
            {"address": url, "run": str(run_folder)},
            f"Watching {run_folder} at {url} (Ctrl-C stops)",
        )
        sys.stdout.flush()

    watching.serve_view(run_folder, host, port, token=token, anybody=anybody, ready=ready)
