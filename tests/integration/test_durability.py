"""Nothing acknowledged is lost: real broker processes are killed at any moment, and go on."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

import motet
from motet import Client, Subscription
from motet.errors import StaleState
from motet.model import Filter
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.session.messages import ClientHello, Done, SubscribeRequest, Welcome
from motet.runtime.tcp import host_and_port
from tests.integration.durable_broker import DurableBroker
from tests.integration.raw_peer import Speaker
from tests.waiting import PATIENCE_S, eventually

ROUNDS = 8
CHURNERS = 6


class Churn:
    """Several tasks of one client that subscribe and unsubscribe, until told to stop."""

    def __init__(self, client: Client, seed: int) -> None:
        self.client = client
        self.acknowledged = 0
        self.standing: dict[str, Subscription] = {}
        self.gone: set[str] = set()
        self.may_go_on = True
        self._chance = random.Random(seed)
        self._numbers = iter(range(10**9))

    async def run(self) -> None:
        await asyncio.gather(*(self._one() for _ in range(CHURNERS)))

    async def _one(self) -> None:
        while self.may_go_on:
            text = f"x = {next(self._numbers)}"
            self.standing[text] = await self.client.subscribe(text, timeout=PATIENCE_S)
            self.acknowledged += 1
            if self._chance.random() < 0.5:
                await self._take_one_back()

    async def _take_one_back(self) -> None:
        text = self._chance.choice(list(self.standing))
        subscription = self.standing.pop(text)
        await subscription.unsubscribe(timeout=PATIENCE_S)
        self.gone.add(text)
        self.acknowledged += 1


async def arrives(publisher: Client, subscription: Subscription, **attributes: object) -> None:
    """What is published now comes in through this subscription."""
    receipt = await publisher.send(dict(attributes))  # type: ignore[arg-type]
    async with asyncio.timeout(PATIENCE_S):
        await receipt
        event = await anext(subscription)
    assert dict(event.attributes) == attributes


async def test_a_broker_is_killed_again_and_again_while_operations_are_under_way(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(DurableBroker(tmp_path))
        alice = await stack.enter_async_context(motet.connect(broker.address, client_id="alice"))
        bob = await stack.enter_async_context(motet.connect(broker.address, client_id="bob"))
        await bob.advertise("x >= 0 or kind = 'lasting'")
        lasting = await alice.subscribe("kind = 'lasting'")
        epochs = (alice.session.epoch, bob.session.epoch)
        churn, chance = Churn(alice, seed=1), random.Random(1)
        for round_ in range(ROUNDS):
            churn.may_go_on = True
            work = asyncio.create_task(churn.run())
            moment = churn.acknowledged + chance.randrange(40)
            await eventually(lambda: churn.acknowledged >= moment)  # noqa: B023
            broker.kill()
            acknowledged, gone = set(churn.standing), set(churn.gone)
            kept = broker.wanted()
            assert acknowledged <= kept, round_
            assert not kept & gone, round_
            churn.may_go_on = False
            await broker.start()
            async with asyncio.timeout(PATIENCE_S):
                await work  # what was under way gets its answer from the broker that came back
            await eventually(lambda: alice.connected and bob.connected)
            assert (alice.session.epoch, bob.session.epoch) == epochs
            await arrives(bob, lasting, kind="lasting", round=round_)
        assert (alice.session.lost_sessions, bob.session.lost_sessions) == (0, 0)
        assert broker.wanted() == {*churn.standing, "kind = 'lasting'"}


@pytest.mark.parametrize(
    ("durability", "lost"), [("may-lose-a-second", 0), ("volatile", 1)], ids=["relaxed", "volatile"]
)
async def test_weaker_durability_modes_lose_state_when_a_process_is_killed(
    tmp_path: Path, durability: str, lost: int
) -> None:
    async with (
        DurableBroker(tmp_path, "B1", "--durability", durability) as broker,
        motet.connect(broker.address, client_id="alice") as alice,
    ):
        await alice.advertise("x > 0")
        subscription = await alice.subscribe("x > 0")
        epoch = alice.session.epoch
        broker.kill()
        await broker.start()
        await eventually(lambda: alice.connected)
        assert (alice.session.lost_sessions, alice.session.epoch == epoch) == (lost, not lost)
        # In any case the client has everything in force again.
        status = await broker.status()
        assert status["journal"]["durability"] == durability
        await eventually(lambda: has_tables(broker, advertisements=1, subscriptions=1))
        await arrives(alice, subscription, x=1)


async def has_tables(broker: DurableBroker, **sizes: int) -> bool:
    tables = (await broker.status())["tables"]
    return all(tables[name] == size for name, size in sizes.items())


async def test_a_client_may_close_before_it_hears_of_the_end_of_its_broker(tmp_path: Path) -> None:
    async with DurableBroker(tmp_path) as broker:
        client = await motet.connect(broker.address)
        broker.kill()  # it returns when the process is gone; the event loop has not run since
        await client.close()
        assert client.closed


# ── several brokers ──────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def line(directory: Path, count: int, *options: str) -> AsyncIterator[list[DurableBroker]]:
    """Brokers B1, B2, …; each dials the one before it."""
    brokers = [DurableBroker(directory, f"B{i + 1}", *options) for i in range(count)]
    for before, after in pairwise(brokers):
        before.options += ("--link", after.name)
        after.options += ("--link", f"{before.name}={before.address}")
    async with AsyncExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.kill)
        await asyncio.gather(*(broker.start() for broker in brokers))
        await asyncio.gather(*(broker.links_up() for broker in brokers))
        yield brokers


async def test_brokers_in_a_line_are_killed_while_operations_flow(tmp_path: Path) -> None:
    async with line(tmp_path, 3, "--heartbeat", "0.5") as (b1, b2, b3), AsyncExitStack() as stack:
        ends = [
            await stack.enter_async_context(motet.connect(broker.address, client_id=name))
            for name, broker in (("alice", b1), ("carol", b3))
        ]
        for client in ends:
            await client.advertise("x >= 0 or to is not null")
        mail = [await client.subscribe(f"to = '{client.client_id}'") for client in ends]
        epochs = [client.session.epoch for client in ends]
        churns = [Churn(client, seed) for seed, client in enumerate(ends)]
        work = [asyncio.create_task(churn.run()) for churn in churns]
        for victim in (b2, b1, b3, b2):
            moments = [churn.acknowledged + 10 for churn in churns]
            await eventually(lambda: reached(churns, moments))  # noqa: B023
            victim.kill()
            await victim.start()
        for churn in churns:
            churn.may_go_on = False
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*work)
        assert [client.session.epoch for client in ends] == epochs
        assert [client.session.lost_sessions for client in ends] == [0, 0]
        await arrives(ends[0], mail[1], to="carol")
        await arrives(ends[1], mail[0], to="alice")
        wanted = {text for churn in churns for text in churn.standing}
        wanted |= {"to = 'alice'", "to = 'carol'"}
        # Both ends publish and subscribe, so everybody knows all that is in force, and no more.
        for broker in (b1, b2, b3):
            assert broker.wanted() == wanted, broker.name


def reached(churns: list[Churn], moments: list[int]) -> bool:
    return all(c.acknowledged >= moment for c, moment in zip(churns, moments, strict=True))


# ── leases ───────────────────────────────────────────────────────────────────────────────


async def hello(broker: DurableBroker, client: str, resume: str | None = None) -> Speaker:
    """A client whose connections are ours to open and break."""
    speaker = Speaker(*await asyncio.open_connection(*host_and_port(broker.address)))
    speaker.say(ClientHello(PROTOCOL_VERSION, client, resume))
    return speaker


async def test_leases_restart_in_full_after_a_recovery(tmp_path: Path) -> None:
    lease_s = 2.0
    async with DurableBroker(tmp_path, "B1", "--lease", str(lease_s)) as broker:
        speaker = await hello(broker, "alice")
        epoch = (await speaker.hear(Welcome)).epoch
        speaker.close()
        broker.kill()
        down_since = time.monotonic()
        await eventually(lambda: time.monotonic() > down_since + 1.2 * lease_s)
        await broker.start()
        again = await hello(broker, "alice", epoch)
        welcome = await again.hear(Welcome)
        assert (welcome.epoch, welcome.resumed) == (epoch, True)
        again.close()


async def test_a_lease_that_runs_out_and_a_goodbye_end_a_session_everywhere(
    tmp_path: Path,
) -> None:
    async with line(tmp_path, 2, "--lease", "0.5") as (b1, b2):
        async with motet.connect(b2.address, client_id="carol") as carol:
            await carol.advertise("x > 0")
            alice = await hello(b1, "alice")
            await alice.hear(Welcome)
            alice.say(SubscribeRequest(1, Filter.parse("x > 1")))
            await alice.hear(Done)
            assert b2.wanted() == {"x > 1"}
            alice.close()
            b1.kill()  # nobody counts the lease while the broker is down; then it runs out
            await b1.start()
            await eventually(lambda: has_tables(b2, subscriptions=0, clients=1))
            async with motet.connect(b1.address, client_id="bob") as bob:
                await bob.subscribe("x > 2")
                assert await has_tables(b2, subscriptions=1, clients=2)
            await eventually(lambda: has_tables(b2, subscriptions=0, clients=1))
        await eventually(lambda: has_tables(b1, advertisements=0, clients=0))
        for broker in (b1, b2):
            broker.kill()
            assert broker.wanted() == set()


# ── older copies ─────────────────────────────────────────────────────────────────────────


async def test_a_restored_backup_is_refused_by_the_neighbours_and_by_itself(
    tmp_path: Path,
) -> None:
    async with line(tmp_path, 2) as (b1, b2):
        await b1.stop()
        shutil.copytree(b1.data, tmp_path / "backup")
        await b1.start()
        async with motet.connect(b1.address) as somebody:  # B2 hears of it, and of its end
            await somebody.advertise("x > 0")
        await b1.stop()
        b1.data.rename(tmp_path / "newer")
        (tmp_path / "backup").rename(b1.data)
        await b1.start()
        status, said = await b1.end_seen()
        assert status == 1
        assert "Traceback" not in said
        last = said.splitlines()[-1]
        assert last.startswith("error: ")
        assert "older copy of its state" in last
        assert "stop B1, move its data folder away, and start it without" in last
        assert b2.running

        b1.data.rename(tmp_path / "stale")
        await b1.start()
        await asyncio.gather(b1.links_up(), b2.links_up())
        async with (
            motet.connect(b1.address, client_id="alice") as alice,
            motet.connect(b2.address, client_id="bob") as bob,
        ):
            subscription = await alice.subscribe("x > 0")
            await bob.advertise("x > 0")
            await arrives(bob, subscription, x=1)


async def restore(broker: DurableBroker, copy: Path) -> None:
    """Put an older copy in the place of the folder, and start the broker with it."""
    broker.kill()
    shutil.rmtree(broker.data)
    copy.rename(broker.data)
    await broker.start()


async def test_a_broker_with_an_old_copy_of_its_state_refuses_clients_that_know_more(
    tmp_path: Path,
) -> None:
    copy = tmp_path / "copy"
    async with DurableBroker(tmp_path) as broker:
        async with (
            motet.connect(broker.address, client_id="alice") as alice,
            motet.connect(broker.address, client_id="bob") as bob,
        ):
            await alice.subscribe("x > 0")
            await bob.advertise("x > 0")
            await broker.stop()
            shutil.copytree(broker.data, copy)
            await broker.start()
            await eventually(lambda: alice.connected)
            await alice.subscribe("x > 1")
            carol = await motet.connect(broker.address, client_id="carol")
            await restore(broker, copy)
            # Alice has an answer that the copy never gave, carol a session that it never opened.
            await eventually(lambda: alice.closed and carol.closed)
            with pytest.raises(StaleState, match=r"answer to request 2 of session \S+, but we"):
                await alice.subscribe("x > 2")
            with pytest.raises(StaleState, match=r"'carol' was in session .* move its data folder"):
                await carol.send({"x": 1})
            await carol.close()
            # The copy has all that bob was told. Whatever clients say, the broker goes on.
            await eventually(lambda: bob.connected)
            assert bob.session.lost_sessions == 0
            expelled = (await broker.status())["counts"]["expelled"]
            assert expelled == {"StaleState": 2}
            assert broker.said.count("is closed: StaleState: ") == 2
        async with motet.connect(broker.address, client_id="alice") as again:
            await again.subscribe("x > 0")
