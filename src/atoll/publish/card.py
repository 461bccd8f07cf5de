"""The model card: what it is, how to use it, how it was trained, and what is not known about it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

import atoll
from atoll.models import checkpoint
from atoll.publish import public
from atoll.runs import Run, read_lines
from atoll.runs.components import Card
from atoll.runs.contributors import read_contributors
from atoll.runs.evaluations import Number, read_evaluation
from atoll.sampling import opening

NAMED = 100
"""At most so many classes are named."""
TASKS = {"none": "unconditional-image-generation", "text": "text-to-image"}
"""What the Hub calls them; it has no word for pictures by class, which get a tag of their own."""


def card(run: Run, licence: str, drawn: Mapping[str, Any]) -> str:
    """The card of a run, with samples of it as `drawn` says."""
    config, contents = public.config(run.config), run.partition.contents
    sizes = contents.sizes
    kind = config.condition.kind
    names = contents.class_names if kind == "class" else ()
    text = Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8")
    template = jinja2.Environment(
        autoescape=False, undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    ).from_string(text)
    return template.render(
        config=config,
        contents=contents.model_copy(update={"features": public.model(contents.features)}),
        licence=licence,
        task=TASKS.get(kind) if contents.kind == "image" else None,
        prompt=(drawn.get("prompt") or ["a prompt"])[0] if kind == "text" else None,
        label=names[0] if names else None,
        classes=[*names[:NAMED], *([f"… and {len(names) - NAMED:,} more"] if len(names) > NAMED else [])],
        experts=[
            {"index": k, "rows": rows, "share": rows / sum(sizes), "loss": _last_loss(run.expert(k).path)}
            for k, rows in enumerate(sizes)
        ],
        parts=_parts(run),
        contributors=read_contributors(run.path),
        router=_last_loss(run.router.path) if run.router.done else None,
        rows=sum(sizes),
        parameters=_parameters(run),
        taught_by=getattr(run.expert(0).contents, "taught_by", 0),
        num=len(drawn["experts"]),
        measured=_measured(run),
        version=atoll.__version__,
    )


def _parts(run: Run) -> list[dict[str, Any]]:
    """Whose each part is, where any says so, and how far those that were added were checked."""
    cards, added = opening.cards(run), {member.number: member for member in run.members.present}
    if not added and len(set(cards.values())) == 1 and next(iter(cards.values())) == Card():
        return []
    return [
        {
            **card.model_dump(mode="json"),
            "number": number,
            "name": added[number].name if number in added else "expert",
            "checked": added[number].mark if number in added else "",
        }
        for number, card in cards.items()
    ]


def _measured(run: Run) -> dict[str, Any] | None:
    """The distances that `atoll evaluate` found, by the first features that it had."""
    rows = read_evaluation(run).measured
    spaces = {setting: row.first_space for setting, row in rows.items()}
    if not spaces:
        return None
    table = [
        {
            "how": setting,
            "num": f"{rows[setting].num:,}",
            "value": _with_interval(space.frechet),
            "floor": f"{space.floor['frechet']:.3g}",
        }
        for setting, space in spaces.items()
    ]
    return {"distance": next(iter(spaces.values())).distance, "rows": table}


def _with_interval(number: Number) -> str:
    value = f"{number.value:.3g}"
    return value if number.low is None else f"{value} ({number.low:.3g} to {number.high:.3g})"


def _parameters(run: Run) -> int:
    """Numbers in the weights of one expert."""
    tensors = checkpoint.read_tensors(run.expert(0).path / checkpoint.WEIGHTS)
    return sum(tensor.numel() for tensor in tensors.values())


def _last_loss(folder: Path) -> float | None:
    lines = [line["loss"] for line in read_lines(folder / "metrics.jsonl")[-5:]]
    return sum(lines) / len(lines) if lines else None
