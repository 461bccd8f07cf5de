"""What a run will need before anything is spent: parameters, FLOPs, memory, bytes, hours."""

from atoll.plan.printed import sentences
from atoll.plan.sheets import DEVICES, Device
from atoll.plan.strategies import (
    entry_flops,
    forward_flops,
    sample_flops,
    strategy_costs,
    strategy_flops,
    training_flops,
)
from atoll.plan.sums import plan, useful_threads

__all__ = [
    "DEVICES",
    "Device",
    "entry_flops",
    "forward_flops",
    "plan",
    "sample_flops",
    "sentences",
    "strategy_costs",
    "strategy_flops",
    "training_flops",
    "useful_threads",
]
