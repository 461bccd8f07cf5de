import pytest

from atoll.config import NetworkConfig, TrainConfig
from atoll.models import costs
from atoll.models.costs import Network
from atoll.plan import fitting
from atoll.plan.fitting import Asked
from atoll.plan.sheets import Device

NETWORK = Network(NetworkConfig(size="B/2"), (4, 32, 32))
COUNT = costs.parameters(NETWORK)


def test_teachers_that_wait_on_disk_are_not_counted():
    asked = Asked(experts=(5, 3, 2), others=7, resident=2)
    assert asked.memory() == 15
    assert asked.memory(1) == 12


@pytest.mark.parametrize(("share", "parallel"), [(0.66, "ddp"), (0.68, "fsdp")])
def test_a_copy_on_each_device_where_it_leaves_a_third(share, parallel):
    device = Device(20 * COUNT / share / 1e9, 100)
    assert fitting.parallel_of(NETWORK, TrainConfig(), device) == parallel
    assert fitting.parallel_of(NETWORK, TrainConfig(parallel="ddp"), device) == "ddp"


def test_arithmetic_decides_what_activations_take():
    auto, exact = TrainConfig(batch=8), TrainConfig(batch=8, precision="float32")
    gpu, old = Device(80, 300), Device(80, 300, half=False)
    memory = [
        fitting.memory_of(NETWORK, train, device, fitting.NOBODY, 1).activations
        for train, device in ((auto, gpu), (exact, gpu), (auto, old))
    ]
    assert memory[0] < memory[1] == memory[2]


def test_each_advice_is_the_least_that_fits():
    train = TrainConfig(batch=64)
    need = {
        size: costs.memory(NETWORK, train.model_copy(update={"micro_batch": size})).total for size in (32, 16)
    }
    device = Device(need[16] / fitting_share() / 1e9 + 1e-6, 100)
    assert need[32] > device.room
    assert fitting.what_would_fit(NETWORK, train, device) == "micro_batch = 16"
    tiny = Device(1e-3, 100)
    assert fitting.what_would_fit(NETWORK, train, tiny) == "a smaller network"


def fitting_share() -> float:
    return Device(1, 1).room / 1e9


def test_a_network_too_large_for_one_is_spread():
    device = Device(12 * COUNT / 1e9, 100)
    advice = fitting.what_would_fit(NETWORK, TrainConfig(batch=64), device)
    assert advice.startswith("launch.gpus = ")
    assert advice.endswith('parallel = "fsdp"')
