import errno

import pytest

from atoll import cli


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_folder_that_cannot_be_written_to_is_named_as_such(tmp_path, monkeypatch, number):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    error = OSError(number, "no", str(tmp_path / "runs" / "a" / "run.toml"))
    said = cli.of_the_disk(error)
    assert said.startswith(f"{tmp_path} is read-only for you")
    assert "ATOLL_RUNS" in said


def test_a_file_of_somebody_else_in_a_folder_of_ones_own(tmp_path):
    error = OSError(errno.EACCES, "Permission denied", str(tmp_path / "a"))
    assert cli.of_the_disk(error).startswith(f"{tmp_path / 'a'}: Permission denied")


def test_other_refusals_are_told_as_they_are(tmp_path):
    assert (
        cli.of_the_disk(OSError(errno.ENOSPC, "No space left", str(tmp_path))) == f"{tmp_path}: No space left"
    )
    assert cli.of_the_disk(OSError(errno.ENOSPC, "No space left")) == "the disk: No space left"
