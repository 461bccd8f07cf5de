"""From finished runs to samples, numbers and exports; foreign checkpoints."""

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import AsJson, RunFolder, StartOver, app
from atoll.cli.output import bar, named, tell


@app.command()
def sample(
    run_folder: RunFolder,
    num: Annotated[int | None, typer.Option(help="How many.")] = None,
    strategy: Annotated[str | None, typer.Option(help="full, top-K, ancestral or auto.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps from noise to data.")] = None,
    guidance: Annotated[float | None, typer.Option(help="Classifier-free guidance; 1 is none.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Class of the samples, number or name; several are taken in turn."),
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="What the samples show, in words; several are taken in turn.")
    ] = None,
    allow: Annotated[
        str | None,
        typer.Option(metavar="RULE", help='Only parts by their cards, as "licence in {cc0, cc-by}".'),
    ] = None,
    protect: Annotated[
        bool, typer.Option("--protect", help="Average two halves that share no sample: fewer copies.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Sample i depends on this and on i alone.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="New folder to write to; by default samples/ of the run, or samples-2/, …"),
    ] = None,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Any other key of [sample], as sample.resident=1."),
    ] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Samples from a finished run, or from an exported one."""
    from atoll import config
    from atoll.sampling import opening
    from atoll.sampling import sample as room

    options = {"num": num, "strategy": strategy, "steps": steps, "guidance": guidance, "seed": seed}
    options |= {"allow": allow, "protect": protect or None}
    given = {key: value for key, value in options.items() if value is not None}
    settings = {**config.of_section("sample", overrides), **given}
    own, out = out is not None, out or room.default_out(run_folder)
    with bar(as_json) as progress:
        count = named(progress, "samples")
        opened = opening.open_address(run_folder)
        written = room.sample(opened, out, own=own, label=label, prompt=prompt, progress=count, **settings)
    sentence = room.strategy_sentence(written) + (f"\n{room.PROTECTED}" if protect else "")
    tell(as_json, written, f"{sentence}\n{room.place_sentence(written)}")


@app.command()
def evaluate(
    run_folder: RunFolder,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a key of [evaluate] or [sample]."),
    ] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Distances to the data, occupancy, copies, router and experts of a finished run, with intervals."""
    from atoll.evaluate import evaluation, measure
    from atoll.pages import report
    from atoll.sampling.opening import open_run

    run = open_run(run_folder, samples=True)
    opened = run.changed(overrides)
    with bar(as_json) as progress:
        record = evaluation.evaluate(opened, progress=progress)
    report.write_again(run)
    tables = [measure.table(list(record["strategies"].items()))]
    tables += [evaluation.routing_table(record["routing"])] if "routing" in record else []
    tell(as_json, record, "\n".join([*tables, f"Wrote {opened.path / 'evaluation' / evaluation.FILE}"]))


@app.command()
def study(
    path: Annotated[
        Path,
        typer.Argument(metavar="STUDY", help="A TOML file with a recipe and axes; see recipes/studies/."),
    ],
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the study, or of all its recipes."),
    ] = [],  # noqa: B006
    on: Annotated[str, typer.Option(help="Where trainings run: local, ray or slurm.")] = "local",
    as_json: AsJson = False,
) -> None:
    """Many runs, one table: every combination of the axes, with the monolith at equal FLOPs beside it."""
    from atoll.cli.stages import screen
    from atoll.study import design, driving

    written = driving.drive(design.load(path, overrides), on, screen(as_json))
    page = f"\nOpen {Path(written['report']).resolve().as_uri()}" if "report" in written else ""
    tell(as_json, written, f"Wrote {written['table']}{page}")


@app.command()
def export(
    run_folder: RunFolder,
    target: Annotated[
        str, typer.Argument(metavar="DIR", help="A new folder, or hub:owner/name to publish it on the Hub.")
    ],
    licence: Annotated[
        str, typer.Option("--license", help="Licence of the weights, as the Hub writes it: mit, cc-by-4.0, …")
    ] = "unknown",
    as_json: AsJson = False,
) -> None:
    """A finished run as a diffusers pipeline with a model card."""
    from atoll.publish import export as room
    from atoll.sampling.opening import open_run

    answer = room.export(open_run(run_folder), target, licence)
    tell(as_json, answer, f"Exported to {answer['address']}")


@app.command("import")
def import_checkpoint(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A .safetensors file, a folder, or hub:owner/name.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder to write to; by default imported/<name>.")] = None,
    mapping: Annotated[
        Path | None, typer.Option(help="A TOML file with our names and theirs, for unknown layouts.")
    ] = None,
    overrides: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Say what the checkpoint does not.")
    ] = [],  # noqa: B006
    start_over: StartOver = False,
    as_json: AsJson = False,
) -> None:
    """A foreign checkpoint to an expert that samples at once and joins an ensemble at once."""
    from atoll.train import imported

    name = checkpoint.removeprefix("hub:").rstrip("/").rsplit("/", 1)[-1].removesuffix(".safetensors")
    folder = out or Path("imported") / name
    stage = imported.bring_in(checkpoint, folder, mapping, overrides, start_over=start_over)
    sentence = f"To start experts from it, write in a recipe:\n\n{stage.contents.recipe}\n\nWrote {folder}"
    tell(as_json, {"folder": str(folder), **stage.contents.facts()}, sentence)
