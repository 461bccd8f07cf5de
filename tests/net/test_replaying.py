"""A stranger trains a segment again: the same bits for who did the work, another update for who did not."""

import shutil

import pytest

from atoll.net import facts, replaying, work
from atoll.net.protocol import File
from atoll.runs import Run, file_digest
from tests.net.doing import Network

pytestmark = pytest.mark.usefixtures("sealed_are_forked")


class Files:
    """A source of artifacts that a network of one machine has."""

    address = "files"

    def __init__(self, network: Network) -> None:
        self._folder = network.folder / "files"

    def save(self, sha256, path) -> bool:
        if not (self._folder / sha256).is_file():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._folder / sha256, path)
        return True


@pytest.fixture
def segment(network):
    """The first segment of an expert, done honestly: network, unit and result."""
    unit = next(one for one in network.ready() if one.stage == "expert 0")
    network.do(unit)
    folder = network.folder / "machines" / "000" / "run"
    outputs, _ = work.made_files(unit, Run(folder, network.config))
    result = facts.Result(
        submission="s", lease="l", unit=unit.name, fence=1, account="a" * 64, device="d",
        outputs=outputs, chain=network.chains[unit.name],
        numerics=work.numerics(unit, Run(folder, network.config)).model_dump(mode="json"),
    )  # fmt: skip
    return network, unit, result


def replayed(network, unit, result):
    manifest = {"resolved": network.config.model_dump(mode="json")}
    return replaying.replay(Files(network), manifest, unit, result)


def test_honest_work_is_the_same_bit_for_bit(segment):
    assert replayed(*segment) == ("agrees", "bit for bit")


def test_a_state_that_was_not_trained_is_found_out(segment):
    network, unit, result = segment
    state = next(file for file in result.outputs if file.path.endswith("step-00000004.safetensors"))
    forged = network.folder / "forged"
    data = bytearray((network.folder / "files" / state.sha256).read_bytes())
    data[-2000:] = bytes(2000)
    forged.write_bytes(bytes(data))
    digest = file_digest(forged)
    shutil.copy(forged, network.folder / "files" / digest)
    outputs = tuple(
        File(path=file.path, sha256=digest, size=file.size) if file == state else file
        for file in result.outputs
    )
    liar = result.model_copy(update={"outputs": outputs, "chain": (*result.chain[:-1], digest)})
    judgement, sentence = replayed(network, unit, liar)
    assert judgement in ("differs", "inconclusive")
    assert "off, cosine" in sentence


def test_what_cannot_be_had_is_not_judged(segment):
    network, unit, result = segment
    (network.folder / "files" / unit.inputs[0].sha256).unlink()
    assert replayed(network, unit, result) == ("unchecked", f"{unit.inputs[0].path} cannot be had")
    listed = result.model_copy(update={"chain": "a" * 64})
    assert replayed(network, unit, listed)[0] == "unchecked"
    without = result.model_copy(update={"outputs": ()})
    assert replayed(network, unit, without)[0] == "unchecked"
