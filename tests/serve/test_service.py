import asyncio

import pytest

from atoll.serve.batching import Scheduler
from atoll.serve.limits import Limits
from atoll.serve.service import GONE, Refused, Service


class Http:
    """A client that goes away when it is told to."""

    state = None

    def __init__(self, host="1.2.3.4"):
        self.client = type("Client", (), {"host": host})
        self.gone = asyncio.Event()

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}


def with_service(model, action, **limits):
    async def main():
        kept = Limits(**limits)
        service = Service({model.name: model}, Scheduler({model.name: model}, kept), kept)
        service.scheduler.start()
        try:
            return await asyncio.wait_for(action(service), 60)
        finally:
            await asyncio.to_thread(service.scheduler.stop)

    return asyncio.run(main())


def test_who_goes_away_has_the_request_dropped(model):
    async def ask(service):
        http = Http()
        request = await service.request(model, num=4, steps=1000)
        ticket = service.scheduler.submit(model, request)
        asyncio.get_running_loop().call_later(0.05, http.gone.set)
        with pytest.raises(Refused) as caught:
            await service.made(ticket, http)
        assert caught.value.status == GONE
        await ticket.ended
        return len(service.scheduler.crowds[model.name].rows)

    assert with_service(model, ask) == 0


def test_who_stays_gets_the_samples(model):
    async def ask(service):
        request = await service.request(model, num=2, steps=3)
        return await service.made(service.scheduler.submit(model, request), Http())

    assert len(with_service(model, ask).x_0) == 2


def test_what_takes_too_long_is_an_answer_too(model):
    async def ask(service):
        request = await service.request(model, num=2, steps=900)
        with pytest.raises(Refused) as caught:
            await service.made(service.scheduler.submit(model, request), Http())
        return caught.value

    error = with_service(model, ask, seconds=0.01)
    assert error.status == 503
    assert int(error.headers["Retry-After"]) >= 1


def test_users_are_addresses_and_names_only_among_those_who_are_trusted(model):
    async def ask(service):
        return service.user(Http(), "me")

    assert with_service(model, ask) == "1.2.3.4"
