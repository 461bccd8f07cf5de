import threading
from dataclasses import replace

import pytest
import torch

from atoll import threads
from atoll.sampling import opening
from atoll.sampling.abreast import abreast, pays
from atoll.sampling.rows import Rows, started
from tests.serving import same, served


@pytest.fixture
def ensemble(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(threads, "cores", lambda: 2)
    return opening.open_run_model(served(tmp_path / "run", "class")).ensemble


def test_small_products_of_several_experts_are_asked_at_once(ensemble, monkeypatch):
    assert pays(ensemble, 2, 4)
    assert not pays(ensemble, 1, 4), "one expert has nobody beside it"
    assert not pays(replace(ensemble, product=1e8), 2, 4), "cores share the products of one"
    assert not pays(replace(ensemble, product=None), 2, 4)
    monkeypatch.setattr(threads, "cores", lambda: 1)
    assert not pays(ensemble, 2, 4)


def test_who_has_said_how_many_threads_there_are_gets_those(ensemble, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert not pays(ensemble, 2, 4)


def test_no_expert_is_asked_that_has_to_make_room(tmp_path, ensemble):
    scarce = opening.open_run_model(served(tmp_path / "scarce", resident=1)).ensemble
    assert not pays(scarce, 2, 4)


def test_two_are_asked_at_the_same_time_and_answers_come_in_order(ensemble):
    both = threading.Barrier(2)

    def ask(question):
        both.wait(60)
        return question, torch.is_inference_mode_enabled(), torch.get_num_threads()

    assert list(abreast(ask, "abcd")) == [(letter, True, 1) for letter in "abcd"]


def test_samples_are_the_same_bits(ensemble, tmp_path, monkeypatch):
    sampler = opening.open_run_model(served(tmp_path / "again", "class"))
    request = sampler.request(num=6, steps=3, strategy="full", guidance=1.5)
    results = []
    for cores in (1, 2):
        monkeypatch.setattr(threads, "cores", lambda cores=cores: cores)
        rows: Rows[str] = Rows(ensemble)
        rows.join(started(ensemble, "mine", request, "full", range(6)))
        for _ in range(3):
            rows.step()
        results.append(rows.x(range(6)))
    assert same(*results)
