"""Real processes of a site with a standby and a witness, killed with kill -9 under load."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from motet.cli.main import run
from motet.client.channel import ask_all
from motet.errors import FoundedAnew
from motet.fleet.process import BrokerProcess, SiteProcess, WitnessProcess, free_addresses
from motet.ordering.client import OrderedStream, OrderingClient, connect
from tests.waiting import eventually

PATIENCE = ("--patience", "1.5")
TOPICS = ("orders", "prices")


async def pair_of(site: SiteProcess) -> dict[str, Any]:
    answer = (await ask_all({"it": site.address}, 5.0))["it"]
    return answer["pair"] if isinstance(answer, dict) else {}


async def leads(site: SiteProcess) -> bool:
    return (await pair_of(site)).get("role") == "primary"


async def has_standby(site: SiteProcess) -> bool:
    account = await pair_of(site)
    return account.get("role") == "primary" and account["in_step"]


class Trio:
    """Two processes of one site and, unless it is left out, their witness."""

    def __init__(self, folder: Path, *, witnessed: bool = True) -> None:
        witness, *listen = free_addresses(3)
        named = ("--witness", witness) if witnessed else ()
        self.witness: WitnessProcess | None = None
        if witnessed:
            self.witness = WitnessProcess("witness", ("--listen", witness), folder)
        self.sites = []
        for name, address, other in (("a", listen[0], ""), ("b", listen[1], listen[0])):
            place = folder / name
            place.mkdir()
            options = ["--listen", address, *PATIENCE, *named]
            if other:
                options += ["--standby", other]
            self.sites.append(SiteProcess("S1", options, place))
        self.sequencer = listen[0]
        """Clients know one of both, and learn the other one."""

    @property
    def processes(self) -> list[BrokerProcess]:
        return [*([self.witness] if self.witness is not None else []), *self.sites]


@contextlib.asynccontextmanager
async def running(trio: Trio) -> AsyncIterator[tuple[SiteProcess, SiteProcess]]:
    try:
        for process in trio.processes:
            await process.start()
        one, other = trio.sites
        await eventually(lambda: has_standby(one))
        yield one, other
    finally:
        for process in trio.processes:
            process.end()


class Load:
    """One publisher without a pause, and two subscribers of its topics."""

    def __init__(self, client: OrderingClient, streams: list[OrderedStream]) -> None:
        self._client = client
        self._streams = streams
        self.published = 0
        self.seen: list[list[tuple[str, int | None, bytes]]] = [[] for _ in streams]
        self._enough = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        work = [self._publish(), *(self._read(at) for at in range(len(self._streams)))]
        self._tasks = [asyncio.create_task(each) for each in work]

    async def _publish(self) -> None:
        while not self._enough:
            await self._client.send(TOPICS[self.published % 2], b"%d" % self.published)
            self.published += 1
            await asyncio.sleep(0.001)
        await self._client.flush(timeout=60)

    async def _read(self, at: int) -> None:
        async for event in self._streams[at]:
            self.seen[at].append((event.topic, event.number, event.payload))

    async def grown(self, by: int = 100) -> None:
        before = [len(each) for each in self.seen]
        await eventually(
            lambda: all(len(each) >= was + by for each, was in zip(self.seen, before, strict=True))
        )

    async def check(self) -> None:
        """Everything came once to both, in one order."""
        self._enough = True
        publishing, *reading = self._tasks
        await publishing
        await eventually(lambda: all(len(each) >= self.published for each in self.seen))
        for task in reading:
            task.cancel()
        one, other = self.seen
        assert one == other
        assert Counter(payload for _, _, payload in one) == Counter(
            b"%d" % number for number in range(self.published)
        )
        numbers = Counter((topic, number) for topic, number, _ in one)
        assert max(numbers.values()) == 1
        assert not any(stream.lost or stream.gaps for stream in self._streams)


@contextlib.asynccontextmanager
async def loaded(trio: Trio, name: str) -> AsyncIterator[Load]:
    service, sequencer = f"memory://{name}", trio.sequencer
    async with (
        connect(service, sequencer=sequencer, client_id="p") as publisher,
        connect(service, sequencer=sequencer, client_id="x") as x,
        connect(service, sequencer=sequencer, client_id="y") as y,
        x.subscribe(*TOPICS) as one,
        y.subscribe(*reversed(TOPICS)) as other,
    ):
        load = Load(publisher, [one, other])
        load.start()
        await load.grown()
        yield load


async def killed(site: BrokerProcess) -> None:
    site.kill()
    await site.ended()


async def test_a_primary_is_killed_under_load_and_comes_back_as_standby(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    async with running(trio) as (one, other), loaded(trio, "killed") as load:
        await killed(one)
        await load.grown()
        assert await leads(other)
        await one.start()
        await eventually(lambda: has_standby(other))
        assert not await leads(one)
        await killed(other)  # the second fail-over
        await load.grown()
        assert await leads(one)
        await load.check()


async def test_without_its_witness_a_pair_in_step_goes_on(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    async with running(trio) as (one, other), loaded(trio, "witness") as load:
        assert trio.witness is not None
        await killed(trio.witness)
        await load.grown()
        await killed(one)
        await eventually(lambda: gone_and_waiting(other))
        assert not await leads(other)  # nobody can grant it
        before = [len(each) for each in load.seen]
        await trio.witness.start()
        await load.grown()
        assert await leads(other)
        assert all(len(each) > was for each, was in zip(load.seen, before, strict=True))
        await load.check()


async def gone_and_waiting(site: SiteProcess) -> bool:
    account = await pair_of(site)
    return account["witness"] == "away" and account["in_step"] and not account["connected"]


async def test_a_primary_that_stood_still_steps_down(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    async with running(trio) as (one, other), loaded(trio, "still") as load:
        one.signal(signal.SIGSTOP)
        try:
            await eventually(lambda: leads(other))
            await load.grown()
        finally:
            one.signal(signal.SIGCONT)
        await eventually(lambda: has_standby(other))
        assert not await leads(one)
        await load.grown()
        await load.check()


async def test_an_operator_promotes_where_there_is_no_witness(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trio = Trio(tmp_path, witnessed=False)
    async with running(trio) as (one, other), loaded(trio, "operator") as load:
        assert await asyncio.to_thread(run, ["sequencer", "promote", other.address]) != 0
        assert "answers; stop it first" in capsys.readouterr().err
        await killed(one)
        assert not await leads(other)
        assert await asyncio.to_thread(run, ["sequencer", "promote", other.address]) == 0
        await load.grown()
        assert await leads(other)
        await one.start()
        await eventually(lambda: has_standby(other))
        await killed(one)
        # Its primary waits for it now, and is not told to go on by itself.
        await eventually(lambda: stalls(other))
        assert await asyncio.to_thread(run, ["sequencer", "promote", other.address]) != 0
        assert "may be promoted instead" in capsys.readouterr().err
        await one.start()
        await load.grown()
        await load.check()


async def stalls(site: SiteProcess) -> bool:
    return bool((await pair_of(site))["stalled"])


async def test_a_neighbour_goes_on_with_the_standby(tmp_path: Path) -> None:
    """Numbers of orders pass both sites."""
    witness_at, low, second, high = free_addresses(4)
    file = tmp_path / "sites.toml"
    file.write_text(
        f'[ordering]\nline = ["S1", "S2"]\nwitness = "{witness_at}"\npatience_s = 1.5\n'
        f'[sites.S1]\nlisten = "{low}"\nstandby = "{second}"\ntopics = ["orders"]\n'
        f'[sites.S2]\nlisten = "{high}"\ntopics = ["prices"]\n'
    )
    trio = Trio(tmp_path)
    trio.witness = WitnessProcess("witness", ("--listen", witness_at), tmp_path)
    trio.sites = []
    for place, name, more in (("one", "S1", ()), ("two", "S1", ("--second",)), ("high", "S2", ())):
        (tmp_path / place).mkdir()
        options = ("--sites", str(file), *more)
        trio.sites.append(SiteProcess(name, options, tmp_path / place))
    trio.sequencer = high
    one, other, _ = trio.sites
    try:
        for process in trio.processes:
            await process.start()
        await eventually(lambda: has_standby(one))
        async with loaded(trio, "neighbour") as load:
            await killed(one)
            await load.grown()
            assert await leads(other)
            await load.check()
    finally:
        for process in trio.processes:
            process.end()


async def test_a_client_notices_that_a_site_was_founded_anew(tmp_path: Path) -> None:
    (address,) = free_addresses(1)
    site = SiteProcess("S1", ("--listen", address), tmp_path)
    await site.start()
    try:
        async with (
            connect("memory://anew", sequencer=address) as client,
            client.subscribe("orders") as stream,
        ):
            await client.publish("orders", b"one")
            assert (await stream.get(timeout=10)).number == 1
            await killed(site)
            site.data.rename(tmp_path / "lost")
            await site.start()
            with pytest.raises(FoundedAnew, match="founded anew"):
                await stream.get(timeout=30)
            with pytest.raises(FoundedAnew):
                await client.publish("orders", b"two")
    finally:
        site.end()
