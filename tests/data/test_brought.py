"""Samples that are brought are what networks of the run see, or refused in one line."""

import numpy as np
import pytest

from atoll.data import brought
from atoll.errors import ConfigError, DataError


def test_values_and_numbers_are_the_run_s(finished, tmp_path):
    pictures = np.arange(4 * 28 * 28, dtype=np.uint32).reshape(4, 28, 28).astype(np.uint8)
    np.savez(tmp_path / "some.npz", images=pictures)
    batch = brought.read(finished, 5, str(tmp_path / "some.npz"), 3)
    assert batch.x_0.shape == (3, 1, 28, 28)
    assert np.allclose(batch.x_0[:, 0].numpy(), pictures[:3] / 127.5 - 1, atol=1e-6)
    assert batch.cluster.tolist() == [5, 5, 5]
    np.savez(tmp_path / "small.npz", images=pictures[:, :8, :8])
    with pytest.raises(DataError, match=r"holds no samples \[1, 28, 28\].*part 5"):
        brought.read(finished, 5, str(tmp_path / "small.npz"), 3)


def test_what_needs_an_encoder_is_not_brought(finished, tmp_path):
    with pytest.raises(ConfigError, match="without captions"):
        told = finished.config.condition.model_copy(update={"kind": "text"})
        finished.config = finished.config.model_copy(update={"condition": told})
        brought.read(finished, 5, str(tmp_path / "some.npz"), 3)
