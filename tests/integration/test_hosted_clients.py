"""Hosted clients in real brokers: their state, and what they publish, exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import motet
from motet.broker.overlay.topology import HostedPlace, Topology
from motet.client.channel import RequestChannel, ask
from motet.errors import MisuseError, MotetError
from motet.fleet.fleet import Fleet
from motet.protocol.mobility.messages import MoveOrder, MoveOrdered
from tests.integration.test_cli import line
from tests.waiting import PATIENCE_S, eventually

LEDGER = "ledger"
CODE = "tests.integration.hosted_code:Ledger"


def topology(folder: Path, **more: object) -> Topology:
    place = HostedPlace(LEDGER, CODE, "B2", options={"folder": str(folder)})
    return replace(line(3), hosted=(place,), durability="fsync", **more)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(topology(tmp_path), tmp_path / "run") as made:
        yield made


async def home(fleet: Fleet) -> str:
    """The broker at which the ledger runs; empty while none does."""
    found = await fleet.statuses()
    return next((name for name, s in found.items() if is_running(s)), "")


def is_running(status: dict[str, object]) -> bool:
    container = status.get("container", {})
    assert isinstance(container, dict)
    return container.get(LEDGER, {}).get("state") == "running"


async def move(fleet: Fleet, to: str) -> str:
    """Order a move; returns the error, if there is one."""
    source = await home(fleet)
    if source in ("", to):
        return "nothing to move"
    async with RequestChannel(fleet.addresses[source], 7.0, "never") as channel:
        return (await channel.ask(MoveOrder(LEDGER, to, 5.0), MoveOrdered)).error


class Books:
    """A durable publisher of amounts, and a durable subscriber of sums."""

    def __init__(self, payer: motet.Client, auditor: motet.Client, sums: motet.Subscription):
        self.payer, self.auditor, self.sums = payer, auditor, sums
        self.paid = 0
        self.counts: list[int] = []
        self.paying = True

    @classmethod
    async def open(cls, fleet: Fleet) -> Books:
        payer = await motet.connect(fleet.addresses["B1"], client_id="payer", durable=True)
        auditor = await motet.connect(fleet.addresses["B3"], client_id="auditor", durable=True)
        await payer.advertise("amount is not null")
        sums = await auditor.subscribe("total is not null")
        return cls(payer, auditor, sums)

    async def pay(self) -> None:
        while self.paying:
            self.paid += 1
            await self.payer.send({"amount": self.paid})
            await asyncio.sleep(0.002)
        await self.payer.flush()

    async def audit(self, upto: int = 0) -> None:
        """Every sum arrives once, and in order."""
        while self.paying or len(self.counts) < max(self.paid, upto):
            event = await anext(self.sums)
            self.counts.append(int(str(event["count"])))
            count = len(self.counts)
            assert self.counts[-1] == count
            assert event["total"] == count * (count + 1) // 2

    async def close(self) -> None:
        await self.payer.close()
        await self.auditor.close()


async def test_a_hosted_client_counts_once_while_it_moves_and_brokers_are_killed(
    fleet: Fleet, tmp_path: Path
) -> None:
    # Given a client that adds up amounts in the container of B2, and traffic
    books = await Books.open(fleet)
    await eventually(lambda: home(fleet))
    paying, auditing = asyncio.create_task(books.pay()), asyncio.create_task(books.audit())
    random = Random(1)
    moves = kills = 0
    # When it is moved about, and its source or its target are killed meanwhile
    for round_ in range(6):
        while not (source := await home(fleet)):
            await asyncio.sleep(0.01)
        to = random.choice([name for name in fleet.processes if name != source])
        moving = asyncio.create_task(move(fleet, to))
        await asyncio.sleep(random.random() * 0.03)
        if round_ % 2 == 0:
            victim = fleet.processes[random.choice((source, to))]
            victim.kill()
            kills += 1
            await victim.ended()
            await victim.start()
        with suppress(MotetError):
            moves += not await moving
    await eventually(lambda: home(fleet))
    books.paying = False
    await paying
    # Then every amount is counted once, every sum is published once, and no two copies ran
    async with asyncio.timeout(PATIENCE_S):
        await auditing
    assert books.counts == list(range(1, books.paid + 1))
    assert not (tmp_path / "twice").exists()
    assert kills == 3
    await books.close()


async def test_a_hosted_client_moves_itself_and_learns_when_it_is_refused(
    fleet: Fleet, tmp_path: Path
) -> None:
    # Given
    books = await Books.open(fleet)
    await eventually(lambda: home(fleet))
    # When an event makes it ask for a move
    await books.payer.publish({"amount": 5, "move": "B3"})
    # Then it goes on there with its state
    async with asyncio.timeout(PATIENCE_S):
        assert (await anext(books.sums))["total"] == 5
    async with asyncio.timeout(PATIENCE_S):
        while await home(fleet) != "B3":
            await asyncio.sleep(0.01)
    # And when it asks for a broker that does not exist, it is told, and stays
    await books.payer.publish({"amount": 2, "move": "B9"})
    async with asyncio.timeout(PATIENCE_S):
        assert (await anext(books.sums))["total"] == 7
        refused = await anext(books.sums)
    assert "knows no broker 'B9'" in str(refused["refused"])
    assert await home(fleet) == "B3"
    # And an error of its code shows in the status, and undoes what it did not acknowledge
    await books.payer.publish({"amount": -1})
    status: dict[str, dict[str, dict[str, object]]] = {}

    async def failed() -> bool:
        nonlocal status
        status = await ask(fleet.addresses["B3"])
        return "negative amount" in str(status["container"][LEDGER]["error"])

    await eventually(failed)
    assert not (tmp_path / "twice").exists()
    starts = (tmp_path / "starts").read_text().split("\n")
    assert starts[0] == "B2 0"
    assert starts[1].startswith("B3 ")
    await books.close()


async def test_a_broker_without_its_code_refuses_a_hosted_client(tmp_path: Path) -> None:
    # Given a hosted client that may run at B2 only
    place = HostedPlace(LEDGER, CODE, "B2", ("B2",), {"folder": str(tmp_path)})
    async with Fleet(replace(topology(tmp_path), hosted=(place,)), tmp_path / "run") as fleet:
        await eventually(lambda: home(fleet))
        # When it is to move to B3
        async with RequestChannel(fleet.addresses["B2"], 7.0, "never") as channel:
            told = await channel.ask(MoveOrder(LEDGER, "B3", 5.0), MoveOrdered)
        # Then B3 refuses, and says why
        assert told.error == "MoveRefused"
        assert "no class is registered for 'ledger' at B3" in told.text
        assert await home(fleet) == "B2"
        # And nobody else takes its id
        with pytest.raises(MisuseError, match="is hosted by B2"):
            await motet.connect(fleet.addresses["B2"], client_id=LEDGER)
