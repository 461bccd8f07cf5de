"""What the record of samples at rest says, as facts that recipes are checked and planned by."""

from atoll.config import Facts
from atoll.runs.records import SamplesContents


def known(contents: SamplesContents) -> Facts:
    """Everything is known once there is a record."""
    text = contents.text
    return Facts(
        shape=contents.shape,
        rows=contents.rows,
        classes=len(contents.class_names),
        captions=None if text is None else True,
        text=None if text is None else text.width,
    )
