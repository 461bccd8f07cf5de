"""What `prepare` understood of a source, as a record and in words."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from atoll.data.parts import Facts
from atoll.data.samples import Source
from atoll.runs.records import DataContents, Remark, Understood

SHEET = "contact-sheet.png"
NAMED = 12
"""Classes that are named in words."""
TOLD = 3
"""Reasons and endings that are told in words."""
KINDS = {"image": "pictures", "series": "series", "video": "videos", "latent": "latents"}


def understood(source: Source, facts: Sequence[Facts]) -> Understood:
    """What a person would want to know of a source, beyond what networks need."""
    return Understood(
        notes=tuple(source.notes),
        labelled=sum(sum(fact.label_counts.values()) for fact in facts),
        class_counts=added(fact.label_counts for fact in facts),
        captions=sum(fact.captions for fact in facts),
        remarks=_gathered(fact.remarks for fact in facts),
        reasons=_gathered(fact.reasons for fact in facts),
        ignored=dict(source.ignored),
    )


def added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums of counts by name."""
    total: dict[str, int] = {}
    for some in counts:
        for name, count in some.items():
            total[name] = total.get(name, 0) + count
    return total


def _gathered(parts: Iterable[Mapping[str, Sequence[Any]]]) -> tuple[Remark, ...]:
    """What was said of samples, the most frequent first, with the first sample that it was said of."""
    counts: dict[str, int] = {}
    firsts: dict[str, str] = {}
    for some in parts:
        for text, (count, first) in some.items():
            counts[text] = counts.get(text, 0) + count
            firsts.setdefault(text, first)
    order = sorted(counts, key=lambda text: -counts[text])
    return tuple(Remark(what=text, count=counts[text], first=firsts[text]) for text in order)


def sentences(contents: DataContents, *, preview: bool = False) -> list[str]:
    """What is in `data/`, line by line, for a person; of a preview, only what a few samples can show."""
    about = contents.understood
    shape = " x ".join(map(str, contents.shape))
    lines = [f"{contents.rows:,} {KINDS.get(contents.kind, 'samples')} of {shape}, {contents.dtype}"]
    lines += [f"  {note}" for note in about.notes]
    if preview:
        lines.append("as far as a few samples show (`atoll prepare` counts all):")
    lines.append(_classes(contents))
    lines.append(f"captions: {about.captions:,}" if about.captions else "captions: none")
    if not preview:
        lines.append(_duplicates(contents))
    lines.append(f"skipped: {contents.skipped:,}" if contents.skipped else "skipped: none")
    lines += _told(about.reasons)
    lines += [f"{one.what}: {one.count:,}, first {one.first}" for one in about.remarks]
    if about.ignored:
        endings = [f"{count:,} {ending}" for ending, count in about.ignored.items()]
        more = f" and {len(endings) - NAMED} more kinds" if len(endings) > NAMED else ""
        lines.append(f"files left out: {', '.join(endings[:NAMED])}{more}")
    return lines


def _classes(contents: DataContents) -> str:
    names, about = contents.class_names, contents.understood
    if not names:
        return "classes: none"
    named = ", ".join(f"{name} ({about.class_counts.get(name, 0):,})" for name in names[:NAMED])
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    without = contents.rows - about.labelled if about.labelled else 0
    return f"classes: {len(names):,}: {named}{more}" + (f"; {without:,} without" if without > 0 else "")


def _duplicates(contents: DataContents) -> str:
    if not contents.duplicates:
        return "duplicates: none"
    return f"duplicates: {contents.duplicates:,} (data.duplicates says whether they stay)"


def _told(reasons: Sequence[Remark]) -> list[str]:
    lines = [f"  {one.count:,}: {one.what}, first {one.first}" for one in reasons[:TOLD]]
    return [*lines, *([f"  and {len(reasons) - TOLD} more reasons"] if len(reasons) > TOLD else [])]
