"""A classifier that takes a second to train."""

import pytest

from atoll.evaluate import classifier


@pytest.fixture(autouse=True)
def _quick_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier, "STEPS", 60)
