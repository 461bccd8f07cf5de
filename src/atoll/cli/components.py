"""Parts that come and go: a component of one's own, added, dropped, and samples forgotten."""

import functools
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import AsJson, Overrides, Recipe, RunFolder, app
from atoll.cli.output import bar, tell


@app.command()
def component(
    recipe: Recipe,
    base: Annotated[
        str | None,
        typer.Option(help="The run that it is for: a folder, an exported run, s3://… or hub:owner/name."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data of your own, which stays here; by default data.source.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New folder to write to; by default component/ of its run.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="An Ed25519 key (PEM) that signs it; see `atoll credit`.")
    ] = None,
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """A part made on data of your own, in a folder that others can add to their run."""
    from atoll import config
    from atoll.components import making
    from atoll.errors import ConfigError
    from atoll.runs import Run
    from atoll.sampling.opening import open_run

    if base is None:
        raise ConfigError("say for which run it is: --base FOLDER, or an address")
    opened = open_run(Path(base))
    source = [] if data is None else [f"data.source={json.dumps(data)}"]
    resolved = making.private_config(config.load(recipe, [*overrides, *source]), opened)
    with Run.begun(resolved, recipe) as run, bar(as_json) as progress:
        folder = run.path / "component" if out is None else out
        made = making.make(run, opened, folder, key, progress)
    tell(
        as_json,
        {"folder": str(folder), "digest": made.digest, **made.contents.facts()},
        f"Nothing of any single sample is in it; its weights have learnt from all of them.\nWrote {folder}",
    )


@app.command()
def add(
    run_folder: RunFolder,
    folder: Annotated[Path, typer.Argument(metavar="COMPONENT", help="What `atoll component` has made.")],
    signed_by: Annotated[
        str | None, typer.Option(help="Refuse it unless this public key (hex) has signed it.")
    ] = None,
    held_out: Annotated[
        str | None, typer.Option(help="Samples like its own that nobody trained on: what it is worth there.")
    ] = None,
    allow_worse: Annotated[
        bool, typer.Option("--allow-worse", help="Add it even if the run is worse with it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """A component joins a finished run: it serves at once, and nothing is trained again."""
    from atoll.components import adding, gate
    from atoll.sampling.opening import changing

    since = time.monotonic()
    with changing(run_folder) as run:
        home = None if held_out is None else functools.partial(gate.brought, run, held_out)
        member = adding.add(run, folder, signed_by, home=home, allow_worse=allow_worse)
    seconds = round(time.monotonic() - since, 2)
    facts = {**member.model_dump(mode="json"), "checked": member.mark, "seconds": seconds}
    assert member.weighed is not None
    lines = [*gate.lines(member.weighed), member.mark.capitalize()]
    tell(as_json, facts, "\n".join([*lines, f"{member.name} is part {member.number} of {run_folder}"]))


@app.command()
def drop(
    run_folder: RunFolder,
    number: Annotated[int, typer.Argument(metavar="K", help="Which part; experts come first.")],
    as_json: AsJson = False,
) -> None:
    """A part serves no longer; the others' weights are renormalised, and nothing is trained again."""
    from atoll.components import adding
    from atoll.sampling.opening import changing

    with changing(run_folder) as run:
        left = adding.drop(run, number)
    own = run.config.partition.clusters
    sentence = f"Part {number} of {run_folder} serves no longer"
    if number < own:
        sentence += f"; its files stay in {run.expert(number).path}, and the learnt router has seen its data"
    tell(as_json, {"number": number, "serving": left.serving(own), "run": str(run.path)}, sentence)


@app.command()
def refresh(
    run_folder: RunFolder,
    samples: Annotated[
        int, typer.Option(help="Samples that each added part draws, if it was trained on as many.")
    ] = 1000,
    as_json: AsJson = False,
) -> None:
    """The learnt router takes in parts that were added, from samples that they draw; no data is needed."""
    from atoll.components import refreshing
    from atoll.sampling.opening import changing

    with changing(run_folder) as run, bar(as_json) as progress:
        refreshed = refreshing.refresh(run, samples, progress)
    numbers = ", ".join(map(str, refreshed.knows))
    tell(
        as_json, refreshed.model_dump(mode="json"), f"The router of {run_folder} tells parts {numbers} apart"
    )


@app.command()
def grow(
    run_folder: RunFolder,
    data: Annotated[
        str | None, typer.Option(help="Data that has arrived; by default what is new in data.source.")
    ] = None,
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """A run grows by data that has arrived: one part more on what is new, and nothing is trained again."""
    from atoll.components import growing
    from atoll.sampling.opening import changing

    with changing(run_folder) as run, bar(as_json) as progress:
        grown = growing.grow(run, data, overrides, progress)
    facts = {**grown.member.model_dump(mode="json"), "rows": grown.rows, "made_in": str(grown.made_in.path)}
    sentence = f"{grown.rows:,} new samples, which stay in {grown.made_in.path}"
    tell(as_json, facts, f"{sentence}\nPart {grown.member.number} of {run_folder} has learnt from them")


@app.command()
def forget(
    run_folder: RunFolder,
    samples: Annotated[
        Path | None,
        typer.Option(help="A list of ids or names (.txt, .csv, .jsonl), or the samples themselves."),
    ] = None,
    start: Annotated[
        str, typer.Option(help="If the common start saw them: retrain it and all experts, or keep it.")
    ] = "ask",
    key: Annotated[Path | None, typer.Option(help="An Ed25519 key (PEM) that signs the certificate.")] = None,
    as_json: AsJson = False,
) -> None:
    """Samples are forgotten: what saw them is made again without them, all else stays bit for bit."""
    from atoll.components import forgetting
    from atoll.errors import ConfigError
    from atoll.sampling.opening import open_run

    if start not in ("ask", "keep", "retrain"):
        raise ConfigError(f"--start is keep or retrain, not '{start}'")
    with bar(as_json) as progress:
        certificate = forgetting.forget(open_run(run_folder), samples, start, key, progress)  # type: ignore[arg-type]
    names = ", ".join(one["stage"] for one in certificate["made_again"])
    lines = [f"Forgotten: {len(certificate['samples'])} samples. Made again: {names or 'nothing'}."]
    lines += [f"Removed: {', '.join(certificate['removed'])}."] if certificate["removed"] else []
    lines += ["What remains:", *(f"- {line}" for line in certificate["remains"])]
    tell(as_json, certificate, "\n".join([*lines, f"Wrote {certificate['certificate']}"]))
