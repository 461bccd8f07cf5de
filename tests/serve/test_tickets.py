import asyncio

import numpy as np
import pytest
import torch

from atoll.serve.tickets import Dropped, Failed, Made, Progress, Ticket

MADE = Made(torch.zeros(1, 1), np.ones((1, 1), np.float32), "full", None, 0.1)


def heard(events, watched=1):
    """What a listener hears who begins to listen after all of it has happened."""

    async def listen():
        ticket = Ticket(None, None, "user", 0.0, watched)
        for event in events:
            ticket.tell(event)
        await asyncio.sleep(0)
        return [event async for event in ticket.events()], ticket.ended.result()

    return asyncio.run(listen())


def test_who_is_late_hears_the_last_step_and_the_last_picture():
    picture = torch.ones(1, 1)
    events, end = heard([Progress(1, 9, 0, picture, MADE.shares), Progress(2, 9, 0), Progress(3, 9, 0), MADE])
    assert events[-1] is end is MADE
    assert len(events) == 1, "what is over need not be told step by step"
    events, _ = heard([Progress(1, 9, 0, picture, MADE.shares), Progress(2, 9, 0), Failed("no")])
    assert events == [Failed("no")]


def test_steps_are_told_to_those_who_watch_alone():
    assert heard([Progress(1, 9, 0), MADE], watched=0) == ([MADE], MADE)


def test_a_picture_that_nobody_saw_is_not_lost():
    async def listen():
        ticket = Ticket(None, None, "user", 0.0, 1)
        picture = torch.ones(1, 1)
        for event in (Progress(1, 9, 0, picture, MADE.shares), Progress(2, 9, 0)):
            ticket.tell(event)
        await asyncio.sleep(0)
        events = ticket.events()
        return picture, await anext(events)

    picture, event = asyncio.run(listen())
    assert event.step == 2
    assert event.preview is picture


@pytest.mark.parametrize("event", [MADE, Failed("too slow")])
def test_the_result_is_the_end(event):
    async def wait():
        ticket = Ticket(None, None, "user", 0.0)
        asyncio.get_running_loop().call_later(0.01, ticket.tell, event)
        return await ticket.result()

    if event is MADE:
        assert asyncio.run(wait()) is MADE
    else:
        with pytest.raises(Dropped, match="too slow"):
            asyncio.run(wait())


def test_nobody_listens_where_the_loop_is_closed():
    async def make():
        return Ticket(None, None, "user", 0.0)

    asyncio.run(make()).tell(MADE)
