"""The picture of docs/credit.md, drawn from what `benchmarks.studies.credit` printed.

python -m benchmarks.studies.credit_picture docs/credit-now.json docs/pictures/credit.png
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INKS = ("#4477aa", "#ee6677", "#228833")
WIDEST = 160
"""Per cent that are drawn; what is more is written."""
SHAPLEY, SPACE = "Shapley, base: two moments", "classifier"
FORETOLD = "lost, from each part's own samples, classifier"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Left, what is foretold against what is lost; right, what attacks pay with the defence and without."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9.2, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        _values(left, study["seeds"])
        _attacks(right, study["seeds"])
        figure.savefig(path, dpi=120, metadata={"Software": None})


def _values(axes: Any, seeds: Sequence[Mapping[str, Any]]) -> None:
    for ink, seed in zip(INKS, seeds, strict=False):
        foretold, lost = seed["worth"][FORETOLD], seed["lost"][SPACE]
        rank, loss = (seed["rank correlation"][SPACE][name] for name in (FORETOLD, SHAPLEY))
        label = f"{seed['run']}: rank correlation {rank:.2f}, of values of the loss {loss:.2f}"
        axes.scatter(foretold, lost, color=ink, s=26, label=label)
    axes.set(xlabel="foretold by --by distance", ylabel="Fréchet distance lost without the expert")
    axes.set_title("each dot an expert that was really left out")
    axes.legend(frameon=False, fontsize=8)


def _attacks(axes: Any, seeds: Sequence[Mapping[str, Any]]) -> None:
    names = [name for name in seeds[0]["attacks"] if name != "honest"]
    for offset, key, ink in ((-0.2, "without", "#bbbbbb"), (0.2, "with", "#4477aa")):
        worst = [100 * max(seed["attacks"][name][key] for seed in seeds) for name in names]
        places = [place + offset for place in range(len(names))]
        axes.barh(places, worst, height=0.38, color=ink, label=f"{key} defence")
        for place, number in zip(places, worst, strict=True):
            if number > WIDEST:
                axes.text(WIDEST - 3, place, f"+{number:.0f}", ha="right", va="center", fontsize=8)
    axes.axvline(10, color="#ee6677", lw=1, ls="--")
    axes.axvline(0, color="#1c2833", lw=0.6)
    axes.set(
        yticks=range(len(names)),
        yticklabels=names,
        xlabel="paid more than for honesty, per cent (worst attacker)",
    )
    axes.set_xlim(-110, WIDEST)
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def main() -> None:
    source, target = (Path(argument) for argument in sys.argv[1:3])
    draw(json.loads(source.read_text(encoding="utf-8")), target)


if __name__ == "__main__":
    main()
