"""Wrong arguments of moves: an error that names the argument, and a client that works as before;
and the order that it keeps."""

from __future__ import annotations

import asyncio
from math import inf, nan
from random import Random
from typing import Any

import pytest

import motet
from motet.errors import MisuseError, MoveRefused
from tests.waiting import PATIENCE_S, eventually


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"to": None}, "given by its name, not to None"),
        ({"to": ""}, "given by its name, not to ''"),
        ({"to": "B9"}, "B1 knows no broker 'B9'"),
        ({"to": "x" * 70_000}, "has at most 64 characters; .* has 70,000"),
        ({"timeout": nan}, "timeout is a number of seconds"),
        ({"timeout": inf}, "timeout is a number of seconds"),
        ({"patience": -1}, "patience is a number of seconds"),
        ({"patience": "5"}, "patience is a number of seconds"),
        ({"patience": 10**400}, "patience is a number of seconds that fits"),
    ],
)
async def test_a_wrong_argument_is_named(words: dict[str, Any], problem: str) -> None:
    async with motet.local(brokers=2) as overlay:
        client = await overlay.connect("alice", broker="B1")
        with pytest.raises(MisuseError, match=problem):
            await client.move(**{"to": "B2"} | words)
        await client.move("B2")
        assert client.broker == "B2"


async def test_a_move_goes_on_when_its_caller_is_cancelled() -> None:
    async with motet.local(brokers=3) as overlay:
        shop = await overlay.connect("shop", broker="B2")
        board = await overlay.connect("board", broker="B1")
        await shop.advertise("order > 0")
        orders = await board.subscribe("order > 0")
        await shop.publish({"order": 1})

        move = asyncio.create_task(board.move("B3"))
        await asyncio.sleep(0)  # the client asks its broker
        move.cancel()
        with pytest.raises(asyncio.CancelledError):
            await move
        assert board.broker == "B1"
        await shop.publish({"order": 2})
        await eventually(lambda: board.broker == "B3")

        await board.move("B2")
        await shop.publish({"order": 3})
        async with asyncio.timeout(PATIENCE_S):
            assert [(await anext(orders))["order"] for _ in range(3)] == [1, 2, 3]
        assert board.session.lost_sessions == 0


async def test_a_move_is_refused_while_a_cancelled_one_is_undecided() -> None:
    async with motet.local(brokers=3) as overlay:
        board = await overlay.connect("board", broker="B1")
        move = asyncio.create_task(board.move("B3"))
        await asyncio.sleep(0)  # the client asks its broker
        move.cancel()
        with pytest.raises(MoveRefused, match="about to move to B3; try again"):
            await board.move("B2")
        await eventually(lambda: board.broker == "B3")
        await board.move("B2")
        assert (board.broker, board.session.lost_sessions) == ("B2", 0)


async def test_publishers_and_subscribers_in_total_order_move_at_once() -> None:
    """A publisher waits until a subscriber that is on its way has asked for its start."""
    random, names = Random(7), ["B1", "B2", "B3"]
    async with motet.local(brokers=3) as overlay:
        pairs = [
            (
                await overlay.connect(f"publisher-{k}", broker=random.choice(names)),
                await overlay.connect(f"subscriber-{k}", broker="B2", order="total"),
            )
            for k in range(4)
        ]

        async def publish(publisher: motet.Client, movers: asyncio.Task[None]) -> int:
            made = 0
            while not movers.done():
                made += 1
                await publisher.send({"of": publisher.client_id, "n": made})
                await asyncio.sleep(random.random() / 200)
            await publisher.flush()
            return made

        async def to_and_fro(*clients: motet.Client) -> None:
            for _ in range(8):
                await asyncio.gather(*(each.move(random.choice(names)) for each in clients))

        async def work(publisher: motet.Client, subscriber: motet.Client) -> None:
            await publisher.advertise(f"of = '{publisher.client_id}'")
            subscription = await subscriber.subscribe(f"of = '{publisher.client_id}'")
            movers = asyncio.create_task(to_and_fro(publisher, subscriber))
            made = await publish(publisher, movers)
            await movers
            async with asyncio.timeout(PATIENCE_S):
                received = [(await anext(subscription))["n"] for _ in range(made)]
            assert received == list(range(1, made + 1))

        await asyncio.gather(*(work(*pair) for pair in pairs))
