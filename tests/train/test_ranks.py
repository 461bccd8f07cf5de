import socket
from pathlib import Path

import pytest
import torch

from atoll.errors import AtollError
from atoll.models.checkpoint import read_tensors
from atoll.runs import previews, read_json, read_lines
from atoll.runs.adopt import adopt
from atoll.train import jobs
from atoll.train.ranks import Ranks, joined
from tests import commands
from tests.train.test_loop import states

SCRIPT = "tests.train.script_ranks"
EXACT = ("expert.precision=float32", "expert.compile=off")


def test_the_rows_of_all_processes_are_the_batch():
    for batch in (1, 2, 7, 16):
        for size in (1, 2, 3):
            rows = [list(range(batch))[Ranks(rank, size).rows(batch)] for rank in range(size)]
            assert [row for part in rows for row in part] == list(range(batch))


def test_one_process_alone_needs_no_others(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined() as ranks:
        assert ranks == Ranks(0, 1)
    assert ranks.from_first(lambda: 5) == 5
    with pytest.raises(AtollError, match="mistake"):
        ranks.from_first(_mistake)
    assert ranks.any(True, torch.device("cpu"))
    assert torch.equal(ranks.gather(torch.arange(3), 3), torch.arange(3))


def _mistake():
    raise AtollError("mistake")


def together(*folders: Path) -> None:
    """Two processes for each run, as torchrun starts them."""
    for folder in folders:
        _together(folder)


def _together(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        commands.Command([folder], {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, module=SCRIPT)
        for rank in range(2)
    ]
    try:
        said = [rank.communicate()[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)


def losses(run):
    return [line["loss"] for line in read_lines(run.expert(0).path / "metrics.jsonl")]


@pytest.mark.slow
def test_two_processes_with_half_the_batch_are_one(prepared):
    """A whole copy in each (DDP) and a share in each (FSDP2), with parts of the batch one after the other."""
    settings = ("expert.steps=20", "expert.log_every=1", "expert.batch=7", "expert.lr=1e-3", *EXACT)
    settings = (*settings, "expert.preview_every=5")  # what is drawn on the way changes nothing
    one = prepared(*settings, name="one")
    jobs.expert(one, 0)
    two = {
        kind: prepared(*settings, f"expert.parallel={kind}", "expert.micro_batch=2", name=kind)
        for kind in ("ddp", "fsdp")
    }
    together(*(run.path for run in two.values()))
    step, alone = states(one.expert(0).path)
    for run in two.values():
        assert [step for step, _ in previews.listed(run.expert(0).path)] == [5, 10, 15, 20]
        assert losses(run) == pytest.approx(losses(one), abs=1e-5)
        found_step, found = states(run.expert(0).path)
        assert found_step == step
        assert found.keys() == alone.keys()
        for name, value in alone.items():
            assert found[name].shape == value.shape
            if name.startswith("ema/"):
                torch.testing.assert_close(found[name], value, atol=1e-4, rtol=1e-3)
        published = read_tensors(run.expert(0).path / "weights.safetensors")
        assert all(torch.equal(value, found[f"ema/{name}"]) for name, value in published.items())
    sums = [read_json(two["fsdp"].path / f"exchanges-{rank}.json")["sums"] for rank in range(2)]
    groups = one.config.expert.depth + 1  # every block, and what is around them
    assert sums == [20 * groups] * 2, "once a step, though the batch has two parts"


@pytest.mark.slow
@pytest.mark.thorough
def test_muon_with_shares_of_matrices_is_muon_with_whole_ones(prepared):
    settings = ("expert.steps=6", "expert.log_every=1", "expert.optimiser=muon", "expert.lr=1e-3", *EXACT)
    one = prepared(*settings, name="one")
    jobs.expert(one, 0)
    two = prepared(*settings, "expert.parallel=fsdp", name="two")
    together(two.path)
    assert losses(two) == pytest.approx(losses(one), abs=1e-4)
    (_, alone), (_, shared) = states(one.expert(0).path), states(two.expert(0).path)
    assert alone.keys() == shared.keys()
    matrices = [name for name in alone if f"optimiser/momentum_buffer/{name.removeprefix('model/')}" in alone]
    assert matrices
    for name in matrices:  # of six steps of size 1e-3 times 0.2 sqrt(rows), a hundredth
        torch.testing.assert_close(shared[name], alone[name], rtol=0, atol=6e-3 * 0.2 * 7 / 100)


@pytest.mark.slow
@pytest.mark.thorough
def test_ranks_go_on_where_one_process_stopped(prepared):
    """The state does not know how many wrote it."""
    from tests.train.test_loop import stop_at

    settings = ("expert.steps=12", "expert.log_every=1", "expert.lr=1e-3", "expert.parallel=fsdp", *EXACT)
    whole, moved = prepared(*settings, name="whole"), prepared(*settings, name="moved")
    jobs.expert(whole, 0)
    stop_at(moved, 5)
    together(moved.path)
    assert losses(moved) == pytest.approx(losses(whole), abs=1e-5)


@pytest.mark.slow
@pytest.mark.thorough
def test_adapters_in_two_processes_are_those_of_one(prepared, finished):
    """The base is frozen and whole or in shares; the state and the file hold the adapter alone."""
    base = finished.expert(1).path.resolve()
    settings = ("expert.steps=6", "expert.log_every=1", "expert.batch=4", "expert.lr=1e-2", *EXACT)
    settings = (*settings, "expert.adapter.rank=2", f"expert.adapter.base='{base}'")
    runs = {
        kind: prepared(*settings, f"expert.parallel={kind}", name=kind) for kind in ("auto", "ddp", "fsdp")
    }
    for run in runs.values():
        adopt(run, 0)
    one = runs.pop("auto")
    jobs.expert(one, 0)
    together(*(run.path for run in runs.values()))
    alone = read_tensors(one.expert(0).path / "weights.safetensors")
    assert all("lora_" in name for name in alone)
    for run in runs.values():
        assert losses(run) == pytest.approx(losses(one), abs=1e-5)
        found = read_tensors(run.expert(0).path / "weights.safetensors")
        assert found.keys() == alone.keys()
        for name, value in alone.items():
            torch.testing.assert_close(found[name], value, atol=1e-4, rtol=1e-3)
