import asyncio

import pytest
from fastapi import Response

from atoll.serve.again import Again, Mismatch


def counted(content=b"answer"):
    """A maker of answers that counts how often it works."""
    calls = []

    async def make():
        calls.append(1)
        await asyncio.sleep(0)
        if isinstance(content, Exception):
            raise content
        return Response(content)

    return make, calls


def test_asked_at_once_or_later_it_is_made_once():
    async def ask():
        again, (make, calls) = Again(100), counted()
        answers = await asyncio.gather(*(again.once("key", b"body", make) for _ in range(3)))
        answers.append(await again.once("key", b"body", make))
        return {answer.body for answer in answers}, len(calls)

    assert asyncio.run(ask()) == ({b"answer"}, 1)


def test_a_key_is_for_one_request():
    async def ask():
        again, (make, _) = Again(100), counted()
        await again.once("key", b"body", make)
        with pytest.raises(Mismatch):
            await again.once("key", b"other", make)
        await again.once("other key", b"other", make)

    asyncio.run(ask())


def test_a_failure_is_told_to_all_who_wait_and_can_be_tried_again():
    async def ask():
        again, (fail, calls) = Again(100), counted(ValueError("no"))
        answers = await asyncio.gather(
            *(again.once("key", b"body", fail) for _ in range(2)), return_exceptions=True
        )
        assert [str(answer) for answer in answers] == ["no", "no"]
        assert len(calls) == 1
        assert (await again.once("key", b"body", counted()[0])).body == b"answer"

    asyncio.run(ask())


def test_who_goes_away_leaves_the_key_free():
    async def ask():
        again, ended = Again(100), asyncio.Event()

        async def wait():
            await ended.wait()

        first = asyncio.create_task(again.once("key", b"body", wait))
        await asyncio.sleep(0)
        second = asyncio.create_task(again.once("key", b"body", wait))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(ConnectionAbortedError):
            await second
        return (await again.once("key", b"body", counted()[0])).body

    assert asyncio.run(ask()) == b"answer"


def test_the_oldest_answers_go():
    async def ask():
        again = Again(20)
        for number in range(5):
            await again.once(str(number), b"body", counted(b"x" * 8)[0])
        make, calls = counted()
        await again.once("4", b"body", make)
        await again.once("0", b"body", make)
        return again.size, len(calls)

    size, calls = asyncio.run(ask())
    assert size <= 20
    assert calls == 1
