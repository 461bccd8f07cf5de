"""The command line itself, and the options that commands share."""

from pathlib import Path
from typing import Annotated

import typer

import atoll

app = typer.Typer(
    name="atoll",
    help="Train one generative model on many islands of compute that never talk to each other.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"atoll {atoll.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="The version, and no more."),
    ] = False,
) -> None:
    """What is said before any command."""


Recipe = Annotated[Path, typer.Argument(help="A TOML file that says what the run is; see recipes/.")]

Overrides = Annotated[
    list[str], typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one setting of the recipe.")
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

StartOver = Annotated[
    bool, typer.Option("--start-over", help="Throw away what the stage has and begin again.")
]

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a finished run, or of one expert.")
]

Host = Annotated[str, typer.Option(help="The address to listen at; by default this machine alone.")]

Port = Annotated[int, typer.Option(help="The port; 0 takes any that is free.")]

Anybody = Annotated[bool, typer.Option("--open", help="Listen beyond this machine without a token.")]
