"""What a coordinator finds out by processes: likeness of results, canaries, reports."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from atoll.errors import AtollError
from atoll.net import comparing
from atoll.net.comparing import Tools
from atoll.net.protocol import File, Numerics, Result, Unit
from atoll.net.verification import asking


class Folder:
    """Files by their digests."""

    def __init__(self, path):
        self.folder = path

    def keep(self, data: bytes, path: str) -> File:
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / digest).write_bytes(data)
        return File(path=path, sha256=digest, size=len(data))

    def path(self, sha256):
        return self.folder / sha256

    def add(self, path, sha256):
        (self.folder / sha256).write_bytes(path.read_bytes())

    def read(self, sha256, most):
        data = (self.folder / sha256).read_bytes()
        if len(data) > most:
            raise AtollError("too long")
        return data


def row(name, *files, jsonl=b""):
    result = Result(unit="0" * 64, outputs=files, numerics=Numerics())
    return SimpleNamespace(id=name, content=name, result=result.model_dump(mode="json"))


def array(folder, values, tmp_path, path="data/0.npy"):
    np.save(tmp_path / "array.npy", np.asarray(values, np.float32))
    return folder.keep((tmp_path / "array.npy").read_bytes(), path)


def test_results_that_differ_by_rounding_are_alike_in_a_real_process(tmp_path):
    folder = Folder(tmp_path)
    one, near, far = (
        row(str(i), array(folder, v, tmp_path)) for i, v in enumerate(([1, 2], [1, 2.0001], [5, 1]))
    )
    assert Tools().alike(folder, [one, near, far]) == {frozenset(("0", "1"))}


def test_other_files_are_not_alike_and_nobody_asks(tmp_path):
    folder, asked = Folder(tmp_path), []

    def ask(*given):
        asked.append(given)
        return True

    tools = Tools(ask)
    one, other = row("a", array(folder, [1], tmp_path)), row("b", array(folder, [1], tmp_path, "data/1.npy"))
    assert tools.alike(folder, [one, other]) == frozenset() and not asked
    same = row("c", array(folder, [1], tmp_path))
    same.content = "a"
    assert tools.alike(folder, [one, same]) == frozenset(), "those of the same bytes need not be asked"


def test_bytes_that_were_compared_once_are_not_opened_again(tmp_path):
    folder, asked = Folder(tmp_path), []

    def ask(module, files):
        asked.append(files)
        return True

    tools = Tools(ask)
    one, other = (row(name, array(folder, [value], tmp_path)) for name, value in (("a", 1), ("b", 2)))
    for _ in range(3):
        assert tools.alike(folder, [one, other]) == {frozenset(("a", "b"))}
    assert len(asked) == 1


def test_a_canary_is_made_of_the_states_around_an_interval(tmp_path):
    folder = Folder(tmp_path)
    before = folder.keep(b"before", f"experts/00/state/{asking.state_name(10)}")
    after = folder.keep(b"after", asking.COMMITTED)
    unit = Unit(
        run="0" * 64, name="a", stage="e", role="audit", first=10, last=20, every=10, inputs=(before, after)
    )

    def spoil(module, arguments):
        assert module.endswith("spoil") and Path(arguments[0]).read_bytes() == b"before"
        Path(arguments[2]).write_bytes(b"spoilt")
        return True

    spoilt = Tools(spoil).spoilt(folder, unit)
    assert spoilt.path == asking.COMMITTED and folder.read(spoilt.sha256, 100) == b"spoilt"
    assert Tools(lambda *given: False).spoilt(folder, unit) is None
    first = unit.model_copy(update={"first": 0})
    assert Tools(spoil).spoilt(folder, first) is None, "the first state of a training is nobody's file"


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff" * 10, b" " * (2 << 20)])
def test_what_is_no_report_is_none(tmp_path, data):
    folder = Folder(tmp_path)
    file = folder.keep(data, asking.REPORT)
    assert comparing.report(folder, Result(unit="0" * 64, outputs=(file,), numerics=Numerics())) is None
    assert comparing.report(folder, Result(unit="0" * 64, numerics=Numerics())) is None


def test_a_record_must_have_the_digests_of_what_came_with_it(tmp_path):
    """Else a false one, handed in first, would be taken for the one that others agree with."""
    folder = Folder(tmp_path)
    tools = Tools(lambda module, files: True)

    def stage(name, values, listed=None):
        file = array(folder, values, tmp_path, "samples/x.npy")
        record = json.dumps({"files": {"x.npy": listed or file.sha256}}).encode()
        return row(name, file, folder.keep(record, "samples/done.json"))

    good, near, false = stage("a", [1]), stage("b", [1.001]), stage("c", [1], "0" * 64)
    assert tools.alike(folder, [good, near, false]) == {frozenset(("a", "b"))}
    broken = row("d", folder.keep(b"no record", "samples/done.json"))
    assert tools.alike(folder, [broken, row("e", folder.keep(b"{}", "samples/done.json"))]) == frozenset()
