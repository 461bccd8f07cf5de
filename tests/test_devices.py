"""One answer to where and in which arithmetic, whatever the machine."""

import pytest
import torch

from atoll import devices
from atoll.errors import ConfigError
from tests.conftest import other_units

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_a_device_that_is_not_there_is_told() -> None:
    assert devices.pick("cpu") == CPU
    assert devices.pick("auto").type in ("cpu", "cuda", "mps")
    assert devices.pick(None) == devices.pick("auto")
    with pytest.raises(ConfigError, match="encode.device 'abacus' is not there; use cpu or auto"):
        devices.pick("abacus", "encode.device")


def test_a_process_of_several_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert devices.best() == torch.device("cuda", 3)


def test_a_compiler_says_why_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("backend='inductor' raised:\n\n  no g++ here\nand more")

    monkeypatch.setattr(torch, "compile", lambda program: program)
    assert devices.compiler_complaint(CPU) is None
    monkeypatch.setattr(torch, "compile", fails)
    assert devices.compiler_complaint(CPU) == "no g++ here"
    assert devices.complaint(ValueError()) == "ValueError"


def test_what_is_asked_for_is_done() -> None:
    for name in ("bfloat16", "float16", "float32"):
        assert devices.arithmetic(name, CPU) == name


@pytest.mark.parametrize("units", [False, True])
def test_a_cpu_uses_bfloat16_only_with_units_for_it(monkeypatch: pytest.MonkeyPatch, units: bool) -> None:
    monkeypatch.delenv(devices.CPU_BFLOAT16, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: units)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert devices.arithmetic("auto", CPU) == ("bfloat16" if units else "float32")
    for answer in ("0", "1"):  # the variable answers in the CPU's place
        monkeypatch.setenv(devices.CPU_BFLOAT16, answer)
        assert devices.arithmetic("auto", CPU) == ("bfloat16" if answer == "1" else "float32")


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((8, 0), "bfloat16"), ((7, 5), "float16"), ((7, 0), "float16"), ((6, 1), "float32")],
    ids=["Ampere", "Turing", "Volta", "Pascal"],
)
def test_a_gpu_by_its_generation(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: capability >= (8, 0))
    assert devices.arithmetic("auto", GPU) == expected


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_products_are_in_the_arithmetic_that_is_named(name: str) -> None:
    with devices.autocast(name, CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == getattr(torch, name)


@pytest.mark.parametrize(("has", "other"), [("0", "1"), ("1", "0")])
def test_the_second_pass_of_the_tests_pretends_the_contrary(
    monkeypatch: pytest.MonkeyPatch, has: str, other: str
) -> None:
    monkeypatch.setenv(devices.CPU_BFLOAT16, has)
    assert other_units() == other
