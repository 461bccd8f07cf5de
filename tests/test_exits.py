"""Whatever goes wrong, a process of ours says it in one line and ends with the code that says what to do."""

import errno

import pytest

from atoll import exits
from atoll.errors import ConfigError, Interrupted


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_folder_that_cannot_be_written_to_is_named_as_such(tmp_path, monkeypatch, number):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    error = OSError(number, "no", str(tmp_path / "runs" / "a" / "run.toml"))
    said = exits.of_the_disk(error)
    assert said.startswith(f"{tmp_path} is read-only for you")
    assert "ATOLL_RUNS" in said


def test_a_file_of_somebody_else_in_a_folder_of_ones_own(tmp_path):
    error = OSError(errno.EACCES, "Permission denied", str(tmp_path / "a"))
    assert exits.of_the_disk(error).startswith(f"{tmp_path / 'a'}: Permission denied")


def test_a_file_that_may_not_be_read_is_no_folder_that_may_not_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "weights").write_text("x")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    error = OSError(errno.EACCES, "Permission denied", str(tmp_path / "weights"))
    assert exits.of_the_disk(error).startswith(f"{tmp_path / 'weights'} may not be read by you")


def test_a_full_disk_is_told_as_such(tmp_path):
    for error, place in (
        (OSError(errno.ENOSPC, "No space left", str(tmp_path)), str(tmp_path)),
        (OSError(errno.EDQUOT, "Quota exceeded"), "the disk"),
        (OSError("486000 requested and 257984 written"), "the disk"),  # numpy's words
    ):
        assert exits.of_the_disk(error) == f"{place}: no space left; free some and run the same command again"


def test_other_refusals_are_told_as_they_are(tmp_path):
    assert exits.of_the_disk(OSError(errno.EIO, "bad", str(tmp_path))) == f"{tmp_path}: bad"
    assert exits.of_the_disk(OSError(errno.EIO, "bad")) == "the disk: bad"


def raising(error):
    def action():
        raise error

    return action


def test_how_a_process_ends(capsys):
    assert exits.exit_code(lambda: None) == 0
    assert exits.exit_code(raising(ConfigError("two\nlines"))) == 1
    assert capsys.readouterr().err == "atoll: two lines\n"
    assert exits.exit_code(raising(Interrupted("saved"))) == 75
    assert exits.exit_code(raising(OSError(28, "No space left", "weights"))) == 1
    assert capsys.readouterr().err == (
        "atoll: saved\natoll: weights: no space left; free some and run the same command again\n"
    )
    assert exits.exit_code(raising(ConfigError(""))) == 1, "a process of ours has said it"
    assert capsys.readouterr().err == ""


def test_where_a_mistake_was_found_is_shown_on_request(capsys):
    assert exits.exit_code(raising(ConfigError("wrong")), debug=True) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown and shown.endswith("atoll: wrong\n")
