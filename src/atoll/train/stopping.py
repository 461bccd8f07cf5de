"""When to stop: a signal to any rank ends all ranks of a job after the same step, in time to save."""

import collections

import torch
from torch import Tensor

from atoll.train.ranks import Ranks

LAG = 2
"""On CUDA, how many steps later ranks read what they agreed on, so that the queue never runs dry."""


class Agreement:
    """Whether any rank was asked to stop: after each step, the same answer in all of them."""

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self.ranks, self.device = ranks, device
        self._under_way: collections.deque[tuple[Tensor, torch.cuda.Event]] = collections.deque()

    def reached(self, signalled: bool, *, now: bool = False) -> bool:
        """Whether to stop; `now` waits for this step's answer rather than reading an earlier one's."""
        if self.ranks.size == 1:
            return signalled
        if self.device.type != "cuda":
            return self.ranks.any(signalled, self.device)
        self._send(signalled)
        stop = False
        while len(self._under_way) > (0 if now else LAG):
            answer, event = self._under_way.popleft()
            event.synchronize()
            stop = stop or bool(answer)
        return stop

    def _send(self, signalled: bool) -> None:
        """Ask all ranks; the answer comes to pinned memory by itself."""
        total = self.ranks.sum(torch.full((), float(signalled), device=self.device))
        answer = torch.empty((), pin_memory=True)
        answer.copy_(total, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._under_way.append((answer, event))
