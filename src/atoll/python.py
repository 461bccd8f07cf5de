"""Training from Python: `atoll.run("recipe.toml", expert={"steps": 100})`, and what comes of it."""

import contextlib
import html
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll import config
from atoll.launch import driver, notebook, table
from atoll.runs import Run, runs_folder

if TYPE_CHECKING:
    from atoll.sampling.sampler import Sampler


class Finished:
    """A finished run: where it is, and the model that it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"atoll.run of {self.folder}"

    def _repr_html_(self) -> str:
        """What a notebook shows: the samples, and where the page is."""
        from atoll.pages.pictures import embedded  # noqa: PLC0415 - only a notebook asks

        picture = embedded(self.folder / "samples" / "grid.png")
        shown = "" if picture is None else f'<img alt="samples" src="{picture}"><br>'
        return f"{shown}<code>{html.escape(str(self.report))}</code>"

    @property
    def report(self) -> Path:
        """The page of the run."""
        return self.folder / "report" / "report.html"

    @property
    def config(self) -> config.RunConfig:
        """What was run."""
        return Run.open(self.folder).config

    @cached_property
    def model(self) -> "Sampler":
        """All experts and the router as one model, opened when it is asked for; as `atoll.load` gives it."""
        from atoll.sampling.opening import open_model  # noqa: PLC0415 - importing atoll must not import torch

        return open_model(self.folder)

    def sample(self, num: int | None = None, **request: Any) -> Any:
        """Samples as a tensor (num, channels, *grid); what else to ask is as for `atoll.load(…).sample`."""
        return self.model.sample(**({} if num is None else {"num": num}), **request)


def run(
    recipe: str | Path, *, on: str = "local", start_over: bool = False, quiet: bool = False, **settings: Any
) -> Finished:
    """Make every stage of a recipe that is not done yet, as `atoll run` does.

    Args:
        recipe: A TOML file.
        on: Where jobs run: "local", "ray" or "slurm".
        start_over: Make again what was made with other settings, and no more.
        quiet: Show no progress.
        **settings: What is to be other than the recipe says, by section: `expert={"steps": 100}`.
    """
    path = Path(recipe)
    resolved = config.load(path, changes=settings)
    with contextlib.ExitStack() as stack:
        from atoll.data import look  # noqa: PLC0415 - importing atoll must not import torch

        config.check(resolved, look.known(Run(runs_folder() / resolved.name, resolved), source=True))
        opened = stack.enter_context(Run.begun(resolved, path))
        driver.drive(opened, on, screen(quiet), start_over=start_over)
    return Finished(opened.path)


def screen(quiet: bool = False) -> driver.Screen:
    """Where a person sees what is going on: below the cell of a notebook, on a terminal, in a log."""
    if not quiet and notebook.is_here():
        return notebook.screen()
    return driver.Screen(lambda: table.watching(quiet), lambda: contextlib.nullcontext())
