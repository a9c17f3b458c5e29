"""A broker's folder: what was acknowledged is there again, or the broker says why it is not."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from motet.broker.core import records
from motet.broker.core.broker import BrokerCore
from motet.broker.folder import recovery
from motet.broker.folder.compaction import Compaction
from motet.broker.folder.examination import examine, facts
from motet.errors import LogCorrupted, LogInUse, MisuseError, StorageError, WrittenByAnotherVersion
from motet.model import Filter
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Received
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.session import messages as session
from motet.runtime.log import FileLog
from tests.waiting import eventually

CONFIG = BrokerConfig("A", ("B",))


def shut(opened: recovery.OpenedFolder) -> None:
    log = opened.journal.log
    assert isinstance(log, FileLog)
    log.shut()


def live(opened: recovery.OpenedFolder, first: int, count: int) -> None:
    """A client makes subscriptions, numbered from `first`."""
    core, journal = opened.core, opened.journal
    now = core.durable.now
    epoch = next((each.epoch for each in core.durable.sessions), None)
    hello = session.ClientHello(PROTOCOL_VERSION, "alice", epoch)
    journal.append(core.step(Received(first, hello), now).persist)
    for number in range(first, first + count):
        wanted = Filter.parse(f"x = {number}")
        request = session.SubscribeRequest(number, wanted, wait=False)
        journal.append(core.step(Received(first, request), now + number).persist)


@pytest.fixture
def lived(tmp_path: Path) -> tuple[Path, str]:
    opened = recovery.open_folder(CONFIG, tmp_path)
    live(opened, 1, 20)
    shut(opened)
    return tmp_path, opened.core.durable.digest()


def test_a_recovered_broker_has_its_former_state(lived: tuple[Path, str]) -> None:
    directory, digest = lived
    opened = recovery.open_folder(CONFIG, directory)
    assert opened.core.durable.digest() == digest
    assert opened.replayed == 22
    live(opened, 21, 5)
    shut(opened)
    again = recovery.read_core(directory)
    assert again.durable.digest() == opened.core.durable.digest()
    assert len(again.durable.routing.state.subscriptions) == 25


def test_an_incarnation_is_kept_and_a_new_folder_gets_a_new_one(tmp_path: Path) -> None:
    first = recovery.open_folder(CONFIG, tmp_path / "one")
    other = recovery.open_folder(CONFIG, tmp_path / "two")
    shut(first)
    shut(other)
    again = recovery.open_folder(CONFIG, tmp_path / "one")
    shut(again)
    assert again.core.config.incarnation == first.core.config.incarnation
    assert other.core.config.incarnation != first.core.config.incarnation


def test_settings_may_change_and_the_rest_may_not(lived: tuple[Path, str]) -> None:
    directory, _ = lived
    opened = recovery.open_folder(replace(CONFIG, lease_s=7.0), directory)
    shut(opened)
    assert opened.core.config.lease_s == 7.0
    with pytest.raises(MisuseError, match="journal of A, not of Z"):
        recovery.open_folder(replace(CONFIG, name="Z"), directory)
    # Having refused, it has let go of the recovery.
    shut(recovery.open_folder(CONFIG, directory))


def test_two_brokers_never_share_a_folder(lived: tuple[Path, str]) -> None:
    directory, _ = lived
    opened = recovery.open_folder(CONFIG, directory)
    with pytest.raises(LogInUse, match="in use by process"):
        recovery.open_folder(CONFIG, directory)
    shut(opened)


# ── snapshots ────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_replaces_the_journal_before_it(tmp_path: Path) -> None:
    async def run() -> tuple[str, str]:
        opened = recovery.open_folder(CONFIG, tmp_path)
        opened.journal.watch(lambda: None, pytest.fail)
        live(opened, 1, 30)
        path = await Compaction(tmp_path, opened.journal, opened.core.acknowledged).take()
        live(opened, 31, 10)
        second = await Compaction(tmp_path, opened.journal, opened.core.acknowledged).take()
        assert not path.exists()
        live(opened, 41, 3)
        digest = opened.core.durable.digest()
        await opened.journal.close()
        return digest, second.name

    digest, name = asyncio.run(run())
    assert [path.name for path in recovery.snapshots(tmp_path)] == [name]
    opened = recovery.open_folder(CONFIG, tmp_path)
    shut(opened)
    assert opened.core.durable.digest() == digest
    assert opened.replayed == 4
    assert [number for number, _ in facts(tmp_path)] == list(range(44, 48))
    assert examine(tmp_path).whole


def test_a_snapshot_is_taken_when_the_journal_has_grown(tmp_path: Path) -> None:
    async def run() -> str:
        opened = recovery.open_folder(CONFIG, tmp_path)
        opened.journal.watch(lambda: None, pytest.fail)
        keeper = Compaction(tmp_path, opened.journal, opened.core.acknowledged, least_bytes=1000)
        task = asyncio.create_task(keeper.run())
        live(opened, 1, 40)
        await eventually(lambda: bool(recovery.snapshots(tmp_path)))
        task.cancel()
        await asyncio.wait({task})
        await opened.journal.close()
        return opened.core.durable.digest()

    digest = asyncio.run(run())
    assert len(recovery.snapshots(tmp_path)) == 1
    assert recovery.read_core(tmp_path).durable.digest() == digest


def test_a_snapshot_that_fails_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        opened = recovery.open_folder(CONFIG, tmp_path)
        live(opened, 1, 5)
        blocked = tmp_path / "0.snapshot"
        blocked.write_bytes(b"not a snapshot")
        keeper = Compaction(tmp_path, opened.journal, opened.core.acknowledged)
        with pytest.raises(StorageError, match=r"0\.snapshot"):
            await keeper.take()
        blocked.unlink()
        await opened.journal.close()

    asyncio.run(run())
    assert not recovery.snapshots(tmp_path)
    assert len(recovery.read_core(tmp_path).durable.routing.state.subscriptions) == 5


def test_a_missing_snapshot_is_noticed(lived: tuple[Path, str]) -> None:
    directory, digest = lived
    path = recovery.close_off(directory)
    opened = recovery.open_folder(CONFIG, directory)
    assert opened.core.durable.digest() == digest
    shut(opened)
    path.rename(path.with_suffix(".away"))
    with pytest.raises(LogCorrupted, match="snapshot"):
        recovery.open_folder(CONFIG, directory)
    assert not examine(directory).whole


def test_a_broken_snapshot_stops_the_broker(lived: tuple[Path, str]) -> None:
    directory, _ = lived
    path = recovery.close_off(directory)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(LogCorrupted, match=path.name):
        recovery.open_folder(CONFIG, directory)
    found = examine(directory)
    assert not found.whole
    assert path.name in found.problems[0]


# ── versions ─────────────────────────────────────────────────────────────────────────────


def test_only_the_version_that_wrote_a_journal_replays_it(
    lived: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = lived
    monkeypatch.setattr(records, "MACHINE_VERSION", records.MACHINE_VERSION + 1)
    with pytest.raises(WrittenByAnotherVersion, match="motet journal snapshot"):
        recovery.open_folder(CONFIG, directory)


def test_an_upgrade_is_a_snapshot_and_a_migration(
    lived: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, digest = lived
    recovery.close_off(directory)
    old = records.MACHINE_VERSION
    monkeypatch.setattr(records, "MACHINE_VERSION", old + 1)
    with pytest.raises(WrittenByAnotherVersion, match="nothing leads"):
        recovery.open_folder(CONFIG, directory)
    assert not examine(directory).whole
    monkeypatch.setitem(records.MIGRATIONS, old, lambda parts: parts)
    assert examine(directory).problems == [], "nor is it broken before its first start"
    opened = recovery.open_folder(CONFIG, directory)
    assert opened.core.durable.digest() == digest
    live(opened, 21, 2)
    shut(opened)
    again = recovery.open_folder(CONFIG, directory)
    shut(again)
    assert len(again.core.durable.routing.state.subscriptions) == 22


# ── looking in ───────────────────────────────────────────────────────────────────────────


def test_examining_a_folder_changes_nothing(lived: tuple[Path, str]) -> None:
    directory, digest = lived

    def picture() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}

    before = picture()
    found = examine(directory)
    assert found.whole
    assert found.broker["digest"] == digest
    assert found.broker["subscriptions"] == 20
    assert len(list(facts(directory))) == 21
    assert picture() == before


def test_a_folder_without_a_broker_is_named_in_the_error(tmp_path: Path) -> None:
    for look in (examine, recovery.read_core, recovery.close_off):
        with pytest.raises(MisuseError, match=str(tmp_path)):
            look(tmp_path)


def test_a_core_read_from_a_folder_is_valid(lived: tuple[Path, str]) -> None:
    directory, _ = lived
    core = recovery.read_core(directory)
    assert isinstance(core, BrokerCore)
    core.validate()
    assert core.status()["tables"]["subscriptions"] == 20


# ── what does not belong together ────────────────────────────────────────────────────────


async def _snapshot_behind(directory: Path, count: int) -> None:
    opened = recovery.open_folder(CONFIG, directory)
    opened.journal.watch(lambda: None, pytest.fail)
    live(opened, 1, count)
    await Compaction(directory, opened.journal, opened.core.acknowledged).take()
    await opened.journal.close()


def test_a_snapshot_without_its_journal_is_noticed(tmp_path: Path) -> None:
    asyncio.run(_snapshot_behind(tmp_path, 5))
    shutil.rmtree(tmp_path / recovery.JOURNAL)
    with pytest.raises(LogCorrupted, match="is not the journal it was made from"):
        recovery.open_folder(CONFIG, tmp_path)


def test_the_journal_of_another_broker_beside_a_snapshot_is_noticed(tmp_path: Path) -> None:
    asyncio.run(_snapshot_behind(tmp_path / "one", 5))
    asyncio.run(_snapshot_behind(tmp_path / "two", 5))
    shutil.rmtree(tmp_path / "one" / recovery.JOURNAL)
    (tmp_path / "two" / recovery.JOURNAL).rename(tmp_path / "one" / recovery.JOURNAL)
    with pytest.raises(LogCorrupted, match="is not the journal it was made from"):
        recovery.open_folder(CONFIG, tmp_path / "one")
    assert not examine(tmp_path / "one").whole


def test_no_snapshot_is_named_after_facts_that_are_not_there(lived: tuple[Path, str]) -> None:
    directory, _ = lived
    with pytest.raises(LogCorrupted, match="22 facts, not 23"):
        recovery.take_snapshot(directory, 23, {})
