"""`atoll serve`: a finished run over HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import Anybody, AsJson, Host, Port, app
from atoll.cli.output import announced


@app.command()
def serve(
    run_folder: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A finished run, an exported one, s3://…, or hub:owner/name."),
    ],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Annotated[
        str | None,
        typer.Option(envvar="ATOLL_TOKEN", help="What clients must know: Authorization: Bearer TOKEN."),
    ] = None,
    anybody: Anybody = False,
    show_data: Annotated[
        bool,
        typer.Option(
            "--show-data", help="Also show the training samples nearest to one, not their ids alone."
        ),
    ] = False,
    policies: Annotated[
        Path | None,
        typer.Option(help="A TOML file of users: their tokens, and which parts they may ask."),
    ] = None,
    limit: Annotated[
        list[str],
        typer.Option("--limit", metavar="KEY=VALUE", help="Change a limit, as num=64; see docs/serve.md."),
    ] = [],  # noqa: B006
    overrides: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Any key of [sample], as sample.steps=20.")
    ] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Samples over HTTP: a playground for people, an API for programs."""
    from atoll import config
    from atoll.serve import require_libraries
    from atoll.serve.limits import limits

    require_libraries()
    from atoll.serve import server

    server.serve(
        run_folder,
        host,
        port,
        limits(limit),
        token=token,
        anybody=anybody,
        show_data=show_data,
        policies=policies,
        ready=announced(as_json, run_folder, "Serving"),
        **config.of_section("sample", overrides),
    )
