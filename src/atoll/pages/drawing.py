"""Curves as SVG that stand in a page: its fonts, no background, the same bytes every time."""

import io
from collections.abc import Callable
from typing import Any

SIZE = (5.2, 3.0)


def drawn(draw: Callable[[Any], None], size: tuple[float, float] = SIZE) -> str:
    """What `draw` puts onto axes of matplotlib, as an SVG element."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and only needed here
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(
        {
            "svg.hashsalt": "atoll",
            "svg.fonttype": "none",
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 11,
        }
    ):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
