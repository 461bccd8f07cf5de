"""Parse, call, print: one module per group of commands; heavy imports inside the command."""

import sys

from atoll import exits
from atoll.cli import (  # noqa: F401 - they add their commands to the app
    about,
    auditing,
    components,
    credit,
    hosting,
    joining,
    results,
    serving,
    stages,
    watching,
)
from atoll.cli.options import app


def main() -> None:
    """Run the command line; --debug shows where a mistake was found."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    command = lambda: app(args=arguments, prog_name="atoll", standalone_mode=True)  # noqa: E731
    sys.exit(exits.exit_code(command, debug="--debug" in sys.argv))
