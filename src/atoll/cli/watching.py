"""`atoll watch`: a run in a browser, while it is made."""

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import Anybody, AsJson, Host, Port, app
from atoll.cli.output import announced


@app.command()
def watch(
    run_folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's folder, finished or not, or s3://….")
    ],
    host: Host = "127.0.0.1",
    port: Port = 8001,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="ATOLL_TOKEN", help="What whoever looks must know: the browser asks for it as a password."
        ),
    ] = None,
    anybody: Anybody = False,
    as_json: AsJson = False,
) -> None:
    """Every stage and job of a run in a browser, while it is made."""
    from atoll.serve import require_libraries

    require_libraries()
    from atoll.serve import watching

    watching.serve_view(
        run_folder, host, port, token=token, anybody=anybody, ready=announced(as_json, run_folder, "Watching")
    )
