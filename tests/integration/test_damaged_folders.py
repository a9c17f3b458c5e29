"""Damage in a broker's folder is reported with its place and a remedy, and never repaired."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import motet
from motet.broker.core.records import MACHINE_VERSION
from motet.broker.driver.service import open_broker
from motet.broker.folder.recovery import JOURNAL
from motet.broker.overlay.topology import BrokerPlace, Topology, Wiring
from motet.cli.main import run
from motet.errors import StaleState, StorageError
from motet.fleet.process import free_ports
from motet.protocol.config import BrokerConfig
from motet.runtime.log import FileLog
from motet.runtime.log.files import listing
from tests.integration.durable_broker import MOTET, NEXT_RELEASE, DurableBroker, flip
from tests.waiting import PATIENCE_S, eventually, wait_until

WANTED = [f"x = {number}" for number in range(40)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a broker that was killed twice; its journal has two segments."""
    directory = tmp_path_factory.mktemp("killed")

    async def live() -> None:
        broker = DurableBroker(directory)
        await _subscribe(broker, WANTED[:20])
        files = FileLog.open(broker.data / JOURNAL, purpose=JOURNAL, version=MACHINE_VERSION)
        files.roll()
        files.shut()
        await _subscribe(broker, WANTED[20:])

    asyncio.run(live())
    return directory / "B1"


async def _subscribe(broker: DurableBroker, texts: list[str]) -> None:
    async with broker:
        client = await motet.connect(broker.address, client_id=f"client of {texts[0]}")
        for text in texts:
            await client.subscribe(text)
        broker.kill()
        await client.close()


@pytest.fixture
def broker(killed: Path, tmp_path: Path) -> DurableBroker:
    shutil.copytree(killed, tmp_path / "B1")
    return DurableBroker(tmp_path)


def first(broker: DurableBroker) -> Path:
    return broker.segments[0]


def last(broker: DurableBroker) -> Path:
    return broker.segments[-1]


Damage = Callable[[DurableBroker], None]

DAMAGES: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "a bit in the middle": (
        lambda b: flip(first(b), first(b).stat().st_size // 2),
        ("00000000000000000001.log: record ", " at offset ", "is broken"),
    ),
    "a bit in the last segment": (
        lambda b: flip(last(b), last(b).stat().st_size // 2),
        ("{last}: record ", " at offset ", "is broken"),
    ),
    "a bit in the last record": (
        lambda b: flip(last(b), -3),
        ("{last}: record ", " at offset ", "is broken"),
    ),
    "a bit in a header": (lambda b: flip(last(b), 9), ("{last}", "header")),
    "a segment cut short": (
        lambda b: os.truncate(first(b), first(b).stat().st_size * 2 // 3),
        ("00000000000000000001.log", "offset"),
    ),
    "the first segment gone": (
        lambda b: first(b).unlink(),
        ("the segment with records 1 to ", "is missing"),
    ),
    "the last segment gone": (
        lambda b: last(b).unlink(),
        ("the segment that begins with record ", "is missing"),
    ),
    "all segments gone": (
        lambda b: [path.unlink() for path in b.segments] and None,
        ("all segments are missing",),
    ),
    "a segment under another name": (
        lambda b: last(b).rename(last(b).with_name("00000000000000099999.log")) and None,
        ("00000000000000099999.log", "renamed"),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_with_the_way_out_and_left_as_it_is(
    broker: DurableBroker, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    harm, words = DAMAGES[damage]
    words = tuple(word.format(last=last(broker)) for word in words)
    harm(broker)
    before = listing(broker.data, broker.data / JOURNAL)
    said = refusal(broker)
    assert said.startswith(str(broker.data))
    assert all(word in said for word in words), said
    assert "nothing was changed; restore the folder from a backup, or move it away" in said
    changed = {
        path
        for path, state in listing(broker.data, broker.data / JOURNAL).items()
        if before.get(path) != state
    }
    assert changed <= {str(broker.data / JOURNAL / mark) for mark in ("lock", "closed")}

    assert run(["journal", "verify", str(broker.data)]) == 1
    problem, *_, hint = capsys.readouterr().err.splitlines()
    assert problem.startswith(f"error: {broker.data}")
    assert "record" in problem or "header" in problem or "segment" in problem
    assert hint.startswith("hint: restore the folder from a copy")


def refusal(broker: DurableBroker) -> str:
    """What the process would say; this takes a tenth of the time."""
    with pytest.raises(StorageError) as caught:
        open_broker(BrokerConfig("B1"), Wiring(broker.address), broker.data)
    return str(caught.value)


@pytest.mark.parametrize("damage", ["a bit in the middle", "the last segment gone"])
async def test_a_broker_with_a_damaged_folder_prints_one_line_and_exits(
    broker: DurableBroker, damage: str
) -> None:
    harm, _ = DAMAGES[damage]
    harm(broker)
    assert await broker.refused() == (1, f"error: {refusal(broker)}\n")


def test_a_folder_without_damage_is_intact(
    broker: DurableBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["journal", "verify", str(broker.data)]) == 0
    assert "intact" in capsys.readouterr().out
    assert broker.wanted() == set(WANTED)


# ── the end of the journal ───────────────────────────────────────────────────────────────


async def test_a_group_that_was_torn_is_cut_and_nothing_acknowledged_is_in_it(
    broker: DurableBroker,
) -> None:
    """The disk takes half of a group, and the broker ends. With room it goes on."""
    await broker.start()
    client = await motet.connect(broker.address, client_id="bob")
    await client.subscribe("x = 1000")
    size = last(broker).stat().st_size
    broker.let_no_file_grow_beyond(size + 50)
    under_way = [asyncio.ensure_future(client.subscribe(f"x = {n}")) for n in range(2000, 2020)]
    status, said = await broker.end_seen()
    assert status == 1
    assert "Traceback" not in said
    line = said.splitlines()[-1]
    assert line.startswith(f"error: {last(broker)} could not be written: File too large; ")
    assert "make room on the disk or replace it, then start again" in line
    assert last(broker).stat().st_size == size + 50
    assert not any(task.done() for task in under_way)  # nobody was told that it is in force
    assert not client.closed
    assert broker.wanted() == {*WANTED, "x = 1000"}

    await broker.start()
    assert "cut 50 bytes of a group that a crash tore" in broker.said
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*under_way)  # the client has asked again
    assert client.session.lost_sessions == 0
    assert broker.wanted() == {*WANTED, "x = 1000", *(f"x = {n}" for n in range(2000, 2020))}
    broker.kill()
    await client.close()


async def test_a_client_detects_answers_lost_with_a_truncated_journal(
    broker: DurableBroker,
) -> None:
    """The end of a journal that was never closed is cut off: it looks like a torn group, but was
    acknowledged. A client that has the answer is told."""
    await broker.start()
    client = await motet.connect(broker.address, client_id="bob")
    await client.subscribe("x = 1000")
    await client.subscribe("x = 2000")
    broker.kill()
    os.truncate(last(broker), last(broker).stat().st_size - 5)
    await broker.start()
    assert "bytes of a group that a crash tore" in broker.said
    await eventually(lambda: client.closed)
    with pytest.raises(StaleState, match=r"answer to request 2 .* but we know of 1"):
        await client.subscribe("x = 3000")
    assert broker.running
    broker.kill()
    await client.close()


async def test_a_journal_that_was_closed_in_order_has_no_torn_end(broker: DurableBroker) -> None:
    await broker.start()
    await broker.stop()
    os.truncate(last(broker), last(broker).stat().st_size - 5)
    assert "the log was closed behind record" in refusal(broker)


# ── the folder as a whole ────────────────────────────────────────────────────────────────


async def test_a_folder_that_cannot_be_written(broker: DurableBroker) -> None:
    broker = DurableBroker(broker.data.parent, cannot_write=True)
    folders = (broker.data, broker.data / JOURNAL)
    for path in (*broker.data.rglob("*"), *folders):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        status, said = await broker.refused()
    finally:
        for path in folders:
            path.chmod(0o755)
    assert status == 1
    (line,) = said.splitlines()
    assert line.startswith(f"error: {broker.data}")
    assert "Permission denied; give this user the right to write there" in line


async def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "B1").write_text("a file")
    status, said = await DurableBroker(tmp_path).refused()
    assert status == 1
    (line,) = said.splitlines()
    assert line.startswith(f"error: {tmp_path / 'B1'} ")
    assert "name another folder" in line or "name another one" in line


async def test_two_processes_never_share_a_folder(broker: DurableBroker) -> None:
    async with broker:
        second = DurableBroker(broker.data.parent)
        status, said = await second.refused()
        assert status == 1
        assert f"is in use by process {broker.pid}; stop it first" in said
        async with motet.connect(broker.address) as client:
            await client.subscribe("x = 1000")
            assert "x = 1000" in broker.wanted()


async def test_the_folder_of_another_broker(broker: DurableBroker) -> None:
    other = DurableBroker(broker.data.parent, "B2")
    other.data = broker.data
    status, said = await other.refused()
    assert status == 2
    assert said == f"error: {broker.data}: this is the journal of B1, not of B2\n"


# ── releases ─────────────────────────────────────────────────────────────────────────────


async def test_an_upgrade_goes_by_a_snapshot(
    broker: DurableBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    program = (*MOTET[:1], "-c", NEXT_RELEASE)
    directory = broker.data.parent
    newer = DurableBroker(directory, command=(*program, "migrates"))
    status, said = await newer.refused()
    assert status == 1
    way_out = f"run its `motet journal snapshot {broker.data}`, then start this one"
    assert f"version {MACHINE_VERSION} " in said
    assert way_out in said
    assert run(["journal", "verify", str(broker.data)]) == 0  # by this release: it is untouched

    assert run(["journal", "snapshot", str(broker.data)]) == 0
    assert str(broker.snapshots[0]) in capsys.readouterr().out
    status, said = await DurableBroker(directory, command=(*program, "cannot")).refused()
    assert status == 1
    assert f"nothing leads from {MACHINE_VERSION} to {MACHINE_VERSION + 1}" in said
    assert str(broker.data) in said
    async with newer, motet.connect(newer.address) as client:
        tables = (await client.status())["tables"]
    assert tables["subscriptions"] == len(WANTED)

    said = refusal(broker)  # and there is no way back
    assert f"version {MACHINE_VERSION + 1}" in said
    assert str(broker.data) in said


# ── motet up ─────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def up(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Two brokers in a line, kept up; what is said is in `up.stderr`."""
    ports = free_ports(2)
    places = (
        BrokerPlace("B1", f"motet://127.0.0.1:{ports[0]}"),
        BrokerPlace("B2", f"motet://127.0.0.1:{ports[1]}", ("B1",)),
    )
    file = directory / "overlay.toml"
    file.write_text(Topology("test", places).to_toml())
    with (directory / "up.stderr").open("w") as errors:
        process = subprocess.Popen(
            [*MOTET, "up", str(file), "--dir", str(directory / "run"), "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def test_up_reports_a_damaged_folder_once_and_goes_on_when_it_is_gone(tmp_path: Path) -> None:
    folder, errors = tmp_path / "run" / "B2", tmp_path / "up.stderr"
    with up(tmp_path) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        (pid,) = [each["pid"] for each in ready["brokers"] if each["broker"] == "B2"]
        (segment,) = (folder / JOURNAL).glob("*.log")
        flip(segment, 100)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "B2 is not well" in errors.read_text())
        log = tmp_path / "run" / "B2.log"
        wait_until(lambda: log.read_text().count("is broken") >= 2)  # and is tried again
        died, unwell = errors.read_text().splitlines()
        assert died == f"B2 (pid {pid}) died of SIGKILL; restarting in 0.1 s"
        assert unwell.startswith(
            f"B2 is not well: B2 did not start: {segment}: record 1 at offset "
        )
        assert "move it away" in unwell
        folder.rename(tmp_path / "damaged")
        wait_until(lambda: "B2 is back" in errors.read_text())
    assert process.returncode == 0
