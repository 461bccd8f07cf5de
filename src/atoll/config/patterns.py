"""How names and strategies are written, and what to say of those that are not."""

STRATEGY = (
    r"^(auto|full|ancestral|oracle|top-[1-9]\d*|sample-[1-9]\d*|(threshold|nucleus)-(0?\.\d+|1(\.0*)?))$"
)
"""How a strategy is written."""
STRATEGIES = "full, top-K, threshold-P, nucleus-P, sample-N, ancestral or auto"
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""How a run or a study may be called: as a folder."""
IN_WORDS = {
    STRATEGY: f"use {STRATEGIES}",
    NAME: "use letters, digits, '.', '_' and '-', and begin with a letter or digit",
}
"""What patterns mean."""
NAMED = {
    STRATEGY: (
        *("auto", "full", "ancestral", "oracle"),
        *(f"{kind}-{number}" for kind in ("top", "sample") for number in (1, 2, 4)),
        *(f"{kind}-{number}" for kind in ("threshold", "nucleus") for number in ("0.1", "0.5", "0.9")),
    )
}
"""Names that fit a pattern, to offer to somebody who wrote one that does not."""
