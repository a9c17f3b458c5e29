"""A real overlay of processes that changes while clients use it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

import motet
from motet.broker.overlay.topology import BrokerPlace, Topology
from motet.client.channel import ask
from motet.fleet.process import free_ports
from tests.integration.durable_broker import MOTET, DurableBroker
from tests.integration.test_cli import line
from tests.waiting import PATIENCE_S, eventually


class Told:
    """How a command ended."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


async def command(*arguments: str) -> Told:
    process = await asyncio.create_subprocess_exec(
        *MOTET,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Told(process.returncode, out.decode(), err.decode())


class Overlay:
    """`motet up` with a file that the tests rewrite."""

    def __init__(self, folder: Path, brokers: int = 3) -> None:
        self.topology = line(brokers)
        self.file = folder / "overlay.toml"
        self.directory = folder / "run"
        self.write()

    def write(self, topology: Topology | None = None) -> None:
        self.file.write_text((topology or self.topology).to_toml())

    def url(self, name: str) -> str:
        return self.topology.place(name).listen

    def with_fourth(self) -> Topology:
        (port,) = free_ports(1)
        fourth = BrokerPlace("B4", f"motet://127.0.0.1:{port}", ("B3",))
        return replace(self.topology, brokers=(*self.topology.brokers, fourth))

    async def change(self, verb: str, *options: str) -> Told:
        return await command("overlay", verb, *options, "--dir", str(self.directory), "--json")

    async def pids(self) -> dict[str, int]:
        return {
            place.name: (await ask(place.listen))["process"]["pid"]
            for place in self.topology.brokers
        }


@pytest.fixture
async def overlay(tmp_path: Path) -> AsyncIterator[Overlay]:
    async with running(Overlay(tmp_path)) as made:
        yield made


@contextlib.asynccontextmanager
async def running(made: Overlay) -> AsyncIterator[Overlay]:
    folder = made.file.parent
    with (folder / "up.err").open("wb") as err:
        process = await asyncio.create_subprocess_exec(
            *MOTET,
            *("up", str(made.file), "--dir", str(made.directory), "--json"),
            stdout=asyncio.subprocess.PIPE,
            stderr=err,
        )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        ready = await process.stdout.readline()
    assert ready, (folder / "up.err").read_text()
    assert json.loads(ready)["ready"]
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0


async def received(subscription: motet.Subscription, count: int) -> list[object]:
    async with asyncio.timeout(PATIENCE_S):
        return [(await anext(subscription))["n"] for _ in range(count)]


async def test_a_broker_is_added_used_refused_to_go_and_removed(overlay: Overlay) -> None:
    before = await overlay.pids()
    three, four = overlay.topology, overlay.with_fourth()
    async with motet.connect(overlay.url("B1"), client_id="alice") as alice:
        await alice.advertise("n >= 0")

        overlay.write(four)
        told = await overlay.change("reload")
        assert told.status == 0, told.err
        assert [row["broker"] for row in json.loads(told.out)["brokers"]] == [*three.names, "B4"]
        overlay.topology = four

        async with (
            motet.connect(overlay.url("B4"), client_id="dora") as dora,
            dora.subscribe("n >= 0") as numbers,
        ):
            for n in range(5):
                await alice.send({"n": n})
            assert await received(numbers, 5) == list(range(5))
            overlay.write(three)
            told = await overlay.change("reload")
            assert told.status == 1
            assert "B4 still has 1 client: dora" in told.err
            await alice.send({"n": 5})
            assert await received(numbers, 1) == [5], "everything stays as it was"

        told = await overlay.change("reload")
        assert told.status == 0, told.err
        with pytest.raises(motet.MotetError):
            await ask(four.place("B4").listen)
        overlay.topology = three
        await alice.advertise("m >= 0")
    assert await overlay.pids() == before, "the others were not restarted"


async def subscribing(client: motet.Client, restarted: asyncio.Event) -> list[motet.Subscription]:
    """One subscription after the other, all acknowledged, until the restart is over."""
    made: list[motet.Subscription] = []
    while not restarted.is_set():
        made.append(await client.subscribe(f"n = {len(made)}", timeout=PATIENCE_S))
    return made


async def test_a_rolling_restart_loses_no_session_and_nothing_acknowledged(
    overlay: Overlay,
) -> None:
    before = await overlay.pids()
    async with (
        motet.connect(overlay.url("B1"), client_id="alice") as alice,
        motet.connect(overlay.url("B3"), client_id="carol") as carol,
    ):
        await alice.advertise("n >= 0")
        epochs = [client.session.epoch for client in (alice, carol)]
        restarted = asyncio.Event()
        work = asyncio.create_task(subscribing(carol, restarted))
        told = await overlay.change("restart")
        restarted.set()
        assert told.status == 0, told.err
        after = await overlay.pids()
        assert all(after[name] != before[name] for name in before)
        made = await work
        assert made
        assert [client.session.epoch for client in (alice, carol)] == epochs
        assert [client.session.lost_sessions for client in (alice, carol)] == [0, 0]
        for n, subscription in enumerate(made):
            await alice.send({"n": n})
            assert await received(subscription, 1) == [n]


async def test_a_broker_moves_to_another_address(overlay: Overlay) -> None:
    (port,) = free_ports(1)
    places = [
        replace(place, listen=f"motet://127.0.0.1:{port}") if place.name == "B2" else place
        for place in overlay.topology.brokers
    ]
    overlay.topology = replace(overlay.topology, brokers=tuple(places))
    overlay.write()
    told = await overlay.change("reload")
    assert told.status == 0, told.err
    async with (
        motet.connect(overlay.url("B1"), client_id="alice") as alice,
        motet.connect(overlay.url("B3"), client_id="carol") as carol,
    ):
        await alice.advertise("n >= 0")
        async with carol.subscribe("n >= 0") as numbers:
            await alice.send({"n": 7})
            assert await received(numbers, 1) == [7]


async def test_an_invalid_topology_is_refused_and_the_overlay_keeps_running(
    overlay: Overlay,
) -> None:
    before = await overlay.pids()
    for text, why in (
        ("this is no topology", "is not TOML"),
        (overlay.topology.to_toml().replace('links = ["B2"]', 'links = ["B1"]'), "both brokers"),
        (overlay.topology.to_toml().replace('links = ["B1"]', ""), "falls into parts"),
    ):
        overlay.file.write_text(text)
        told = await overlay.change("reload")
        assert told.status == 1
        assert why in told.err
    assert await overlay.pids() == before


async def test_restart_fails_if_no_overlay_is_running(tmp_path: Path) -> None:
    told = await command("overlay", "restart", "--dir", str(tmp_path / "nothing"))
    assert told.status == 2
    assert "no overlay is running" in told.err


# ── a restored backup ────────────────────────────────────────────────────────────────────


async def linked(broker: DurableBroker) -> None:
    """Wait until its links are up and its neighbours have everything."""

    async def settled() -> bool:
        links = (await broker.status())["links"].values()
        return all(link["phase"] == "up" and not link["unacknowledged"] for link in links)

    await eventually(settled)


async def test_a_restored_backup_is_refused_and_joins_again_without_its_folder(
    tmp_path: Path,
) -> None:
    quick = ("--heartbeat", "0.5")
    one = DurableBroker(tmp_path, "B1", "--link", "B2", *quick)
    two = DurableBroker(tmp_path, "B2", "--link", f"B1={one.address}", *quick)
    async with one, two:
        async with motet.connect(one.address, client_id="alice") as alice:
            await alice.advertise("n >= 0")
        await one.stop()
        shutil.copytree(one.data, tmp_path / "backup")
        await one.start()
        async with motet.connect(one.address, client_id="bob") as bob:
            await bob.advertise("m >= 0")
        await linked(one)
        await one.stop()

        shutil.move(one.data, tmp_path / "newer")
        shutil.move(tmp_path / "backup", one.data)
        await one.start()
        status, said = await one.end_seen()
        assert status == 1
        assert "B1 runs on an older copy of its state" in said
        assert "stop B1, move its data folder away, and start it without" in said
        assert two.running

        shutil.move(one.data, tmp_path / "stale")
        await one.start()
        await linked(one)
        async with motet.connect(one.address, client_id="alice") as alice:
            await alice.advertise("n >= 0")
