"""Late readers: what was published at a broker, read back by range, filter and column."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pytest

import motet
from motet.broker.core.cell.mate import MateCore
from motet.broker.driver.driver import BrokerDriver
from motet.broker.driver.service import PUBEND, reload
from motet.broker.folder.retention import retention_of
from motet.broker.overlay.topology import Wiring
from motet.cli.main import run
from motet.errors import Disconnected, EventsLost, MisuseError, NoClientsHere, NotOffered
from motet.protocol.config import BrokerConfig
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.reading.messages import DescribeRequest
from motet.runtime.codec import encode
from motet.runtime.pubend import PubendLog
from tests.integration.durable_broker import DurableBroker, flip
from tests.waiting import eventually

EVENTS = 3000


async def publish(address: str, count: int = EVENTS, payload: bytes = b"x" * 100) -> None:
    """Events of one publisher; `n` counts them, `third` is 0, 1 or 2, `ratio` is a float."""
    async with motet.connect(address, client_id="writer") as writer:
        await writer.advertise("n >= 0")
        for n in range(count):
            await writer.send({"n": n, "third": n % 3, "ratio": n / 7}, payload=payload)
        await writer.flush()


async def read(address: str, **options: Any) -> list[dict[str, Any]]:
    return [row async for batch in motet.read(address, **options) for row in batch.rows()]


@pytest.fixture
async def overlay(tmp_path: Path) -> Any:
    async with motet.local(brokers=2, data=tmp_path) as made:
        yield made


async def test_everything_comes_back_as_it_was_published(
    overlay: motet.client.LocalOverlay,
) -> None:
    address = overlay.address("B1")
    before = datetime.now(UTC)
    await publish(address)
    found = await read(address)
    assert [row["attributes"]["n"] for row in found] == list(range(EVENTS))
    assert [row["sequence"] for row in found] == list(range(1, EVENTS + 1))
    first = found[0]
    assert first["publisher"] == "writer"
    assert first["payload"] == b"x" * 100
    assert first["attributes"] == {"n": 0, "third": 0, "ratio": 0.0}
    assert before - timedelta(seconds=1) < first["time"] < datetime.now(UTC)
    assert first["pubend"] == overlay.status()["B1"]["pubend"]["pubend"]
    assert await read(overlay.address("B2")) == []


async def test_ranges_filters_columns_and_limits(overlay: motet.client.LocalOverlay) -> None:
    address = overlay.address("B1")
    await publish(address)
    ticks = [row["tick"] for row in await read(address, columns=["tick"])]
    rows = await read(address, since=ticks[10], upto=ticks[12], columns=["n"])
    assert rows == [{"n": 10}, {"n": 11}, {"n": 12}]
    rows = await read(address, filter="third = 2", columns=["n", "ratio:float"], limit=2)
    assert rows == [{"n": 2, "ratio": 2 / 7}, {"n": 5, "ratio": 5 / 7}]
    pubend = (await read(address, limit=1))[0]["pubend"]
    assert len(await read(address, pubend=pubend, since={pubend: ticks[-1]})) == 1
    assert await read(address, since=ticks[-1] + 1) == []
    with pytest.raises(MisuseError, match="lies in the future"):
        await read(address, since=datetime.now(UTC) + timedelta(hours=1))
    started = await read(address, columns=["kind", "publisher"], starts=True, limit=1)
    assert started == [{"kind": "event", "publisher": "writer"}]


async def test_a_batch_that_keeps_nothing_says_how_far_it_is(
    overlay: motet.client.LocalOverlay,
) -> None:
    address = overlay.address("B1")
    await publish(address)
    batches = [batch async for batch in motet.read(address, filter="n = 123456")]
    assert sum(map(len, batches)) == 0
    assert sum(batch.scanned for batch in batches) == EVENTS
    async with motet.open_log(address) as log:
        (account,) = await log.describe()
    assert batches[-1].upto == account.last_tick
    assert batches[-1].records.schema.names[:2] == ["pubend", "tick"]


async def test_batches_can_be_used_as_arrow_tables(overlay: motet.client.LocalOverlay) -> None:
    address = overlay.address("B1")
    await publish(address, 10)
    batches = [batch async for batch in motet.read(address, columns=["tick", "n", "pubend"])]
    table = pyarrow.table(pyarrow.Table.from_batches([batch.records for batch in batches]))
    assert table.schema.field("n").type == pyarrow.int64()
    assert table.column("n").to_pylist() == list(range(10))
    assert pyarrow.record_batch(batches[0]).num_rows == len(batches[0])


async def test_values_of_another_kind_are_counted(overlay: motet.client.LocalOverlay) -> None:
    address = overlay.address("B1")
    async with motet.connect(address, client_id="writer") as writer:
        await writer.advertise("x is not null")
        for value in (1, "two", 3.5):
            await writer.send({"x": value})
        await writer.flush()
    (batch,) = [batch async for batch in motet.read(address, columns={"x": "int"})]
    assert (batch.rows(), batch.misfits) == ([{"x": 1}, {"x": None}, {"x": None}], {"x": 2})
    with pytest.raises(MisuseError, match="several kinds"):
        await read(address, columns=["x"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"since": 0}, "`since` is a tick from 1"),
        ({"since": 2**70}, "`since` is a tick from 1 to"),
        ({"upto": {"B1.1": 2**70}}, "`upto` is a tick"),
        ({"limit": 2**70}, "a limit is a number of events"),
        ({"upto": datetime(2026, 1, 1)}, "no time zone"),
        ({"limit": 0}, "a limit is a number of events"),
        ({"columns": "n"}, "columns is a list"),
        ({"columns": []}, "`columns` is empty"),
        ({"columns": 7}, "columns is a list"),
        ({"columns": [7]}, "named by text, not by 7"),
        ({"columns": [None]}, "named by text, not by None"),
        ({"columns": {"n": 7}}, "unknown type 7"),
        ({"columns": ["n", ""]}, "the name of a column is empty"),
        ({"columns": ["n:"]}, "missing after the colon of 'n:'"),
        ({"filter": 7}, "a filter cannot have the type int"),
        ({"columns": ["n:long"]}, "unknown type 'long'"),
        ({"columns": ["tick:int"]}, "attributes.tick"),
        ({"columns": ["n", "n"]}, "same name"),
        ({"columns": ["n", "attributes.n"]}, "asked for twice"),
        ({"columns": ["not a name"]}, "cannot name an attribute"),
        ({"pubend": "B9.1"}, "B1 has no pubend 'B9.1'; it has B1."),
        ({"on_loss": "ignore"}, "on_loss"),
        ({"colums": ["n"]}, "unknown option colums; use one of pubend, since"),
        ({"filter": "n >"}, "column"),
    ],
)
async def test_invalid_read_options_are_misuse(
    overlay: motet.client.LocalOverlay, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(MisuseError, match=text):
        await read(overlay.address("B1"), **options)


async def test_a_broker_without_a_log_says_so() -> None:
    async with motet.local(brokers=1) as overlay:
        address = overlay.address("B1")
        for options in ({}, {"pubend": "B1.1"}):
            with pytest.raises(NotOffered, match="keeps no log to read from: it is volatile"):
                await read(address, **options)
        async with motet.open_log(address) as log:
            with pytest.raises(NotOffered, match="volatile"):
                await log.describe()
    with pytest.raises(Disconnected):
        await read("motet://127.0.0.1:9")


async def test_a_mate_sends_readers_to_its_head() -> None:
    config = BrokerConfig("b2", head="B1", head_at="motet://127.0.0.1:7701")
    mate = BrokerDriver(MateCore(config), Wiring("motet://127.0.0.1:0", {}))
    await mate.start()
    try:
        with pytest.raises(NoClientsHere, match="connect to B1 at motet://"):
            await read(mate.address)
    finally:
        await mate.stop()


async def test_a_reader_waits_for_its_answer(overlay: motet.client.LocalOverlay) -> None:
    async with motet.open_log(overlay.address("B1")) as log:
        await log.describe()
        line = log._channel._exchange
        assert line is not None
        assert line.connection is not None
        twice = [encode(DescribeRequest(PROTOCOL_VERSION, number)) for number in (7, 8)]
        line.connection.send(twice)
        await eventually(lambda: bool(line.ended))
        assert "before the answer came" in line.ended
        assert await log.describe()  # on another connection


# ── cursors and retention ────────────────────────────────────────────────────────────────


async def test_a_cursor_is_kept_until_it_is_dropped(overlay: motet.client.LocalOverlay) -> None:
    address = overlay.address("B1")
    await publish(address, 10)
    async with motet.open_log(address) as log:
        (account,) = await log.describe()
        await log.set_cursor("spark", account.last_tick - 3)
        with pytest.raises(MisuseError, match="not yet"):
            await log.set_cursor("spark", account.last_tick + 1)
        await overlay.stop_broker("B1")
        await overlay.start_broker("B1")
        (again,) = await log.describe()  # it finds the broker again by itself
        assert [(each.name, each.tick) for each in again.cursors] == [
            ("spark", account.last_tick - 3)
        ]
        assert again.cursors[0].expires_s > account.last_tick / 1e6
        await log.drop_cursor("spark")
        assert (await log.describe())[0].cursors == ()
        with pytest.raises(MisuseError, match="has no cursor 'spark'; there are: none"):
            await log.drop_cursor("spark")


async def test_a_broker_seals_trims_and_says_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A cursor older than what is kept: the reader behind it hears that it is too late."""
    monkeypatch.setattr("motet.broker.folder.retention.LOOK_EVERY_S", 0.01)
    monkeypatch.setattr("motet.broker.folder.retention.SEAL_AFTER_S", 0.0)
    retention = retention_of({"size": "1MiB"})
    async with motet.local(brokers=1, data=tmp_path, retention=retention) as overlay:
        address = overlay.address("B1")
        await publish(address, 1000)
        async with motet.open_log(address) as log:
            (account,) = await log.describe()
            await log.set_cursor("slow", account.first_tick)
            await publish(address, 2500, payload=b"y" * 500)

            async def trimmed() -> bool:
                (now,) = await log.describe()
                return now.lost_events > 0 and now.sealed_bytes > 0 and now.size_bytes < 1.2e6

            await eventually(trimmed)
            (account,) = await log.describe()
            assert account.lost_upto == account.first_tick - 1
            with pytest.raises(EventsLost):
                await read(address, since=account.cursors[0].tick + 1)
            batches = [b async for b in log.read(since=2, on_loss="tell", columns=["n"])]
            assert (batches[0].lost, batches[0].since) == (True, 2)
            assert batches[0].upto >= account.lost_upto
            kept = [row["n"] for batch in batches[1:] for row in batch.rows()]
            assert kept == list(range(kept[0], 2500))
        status = overlay.status()["B1"]["pubend"]
        assert status["lost_events"] > 0
        assert "events that subscribers or cursors still need" in caplog.text
        assert list((tmp_path / "B1" / PUBEND).glob("*.arrow"))


async def test_readers_and_sealing_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read again and again while segments become columns under the reader's eyes."""
    monkeypatch.setattr("motet.broker.folder.retention.LOOK_EVERY_S", 0.01)
    monkeypatch.setattr("motet.broker.folder.retention.SEAL_AFTER_S", 0.0)
    retention = retention_of({"size": "2MiB"})
    async with motet.local(brokers=1, data=tmp_path, retention=retention) as overlay:
        address = overlay.address("B1")
        for _ in range(3):
            await publish(address, 1000, payload=b"z" * 400)
        sealed_bytes = 0
        while sealed_bytes == 0:
            async with motet.open_log(address) as log:
                sealed_bytes = (await log.describe())[0].sealed_bytes
            found = await read(address, columns=["n"], filter="third = 1")
            assert [row["n"] for row in found] == [*range(1, 1000, 3)] * 3


async def test_retention_changes_while_a_broker_runs(tmp_path: Path) -> None:
    async with motet.local(brokers=1, data=tmp_path / "data") as overlay:
        driver = overlay.drivers["B1"]
        file = tmp_path / "other.toml"
        changed = dataclasses.replace(overlay.topology, retention=retention_of({"history": "2h"}))
        file.write_text(changed.to_toml())
        assert overlay.status()["B1"]["pubend"]["retention"]["keep_s"] == 86_400.0
        reload(driver, file, "B1")
        assert driver.reloads == [""]
        assert overlay.status()["B1"]["pubend"]["retention"]["keep_s"] == 7200.0


# ── faults ───────────────────────────────────────────────────────────────────────────────


async def test_a_full_disk_ends_the_broker_and_loses_nothing(tmp_path: Path) -> None:
    broker = DurableBroker(tmp_path)
    count = 2500
    async with broker:
        broker.let_no_file_grow_beyond(200_000)
        async with motet.connect(broker.address, client_id="writer", window=500) as writer:
            await writer.advertise("n >= 0")

            async def go_on() -> None:
                for n in range(count):
                    await writer.send({"n": n}, payload=b"x" * 100)
                await writer.flush()

            publishing = asyncio.create_task(go_on())
            status, said = await broker.end_seen()
            assert status == 1
            assert "could not be written: File too large" in said
            assert "make room on the disk" in said
            assert not publishing.done()
            await broker.start()  # somebody has made room
            await publishing
        found = await read(broker.address)
        assert [row["attributes"]["n"] for row in found] == list(range(count))


async def test_a_log_that_was_destroyed_is_reported(tmp_path: Path) -> None:
    broker = DurableBroker(tmp_path)
    async with broker:
        await publish(broker.address, 100)
        last = (await read(broker.address))[-1]["tick"]
        broker.kill()
        shutil.rmtree(broker.data / PUBEND)
        status, said = await broker.refused()
        assert status == 1
        assert "is missing or empty" in said
        assert f"motet broker --topology FILE --name B1 --data {broker.data} --accept" in said
        broker.options = ("--accept-loss",)
        await broker.start()
        async with motet.open_log(broker.address) as log:
            (account,) = await log.describe()
        assert account.lost_upto >= last
        with pytest.raises(EventsLost):
            await read(broker.address, since=last)
        await publish(broker.address, 10)
        assert len(await read(broker.address)) == 10


async def test_a_sealed_file_that_is_damaged_is_reported(tmp_path: Path) -> None:
    broker = DurableBroker(tmp_path)
    async with broker:
        await publish(broker.address, 200)
        pubend = (await broker.status())["pubend"]["pubend"]
        broker.kill()
        files = PubendLog.open(broker.data / PUBEND, pubend)
        files.roll()
        files.log.sync()  # type: ignore[attr-defined]
        assert files.seal_here() == 1
        await files.close()
        (arrow,) = (broker.data / PUBEND).glob("*.arrow")
        flip(arrow, arrow.stat().st_size // 3)
        await broker.start()
        with pytest.raises(motet.errors.LogCorrupted, match="is damaged"):
            await read(broker.address)
        await publish(broker.address, 10)  # others are not disturbed
        broker.kill()
        broker.options = ("--accept-loss",)
        await broker.start()
        batches = [b async for b in motet.read(broker.address, since=1, on_loss="tell")]
        assert [batch.lost for batch in batches] == [True, False]
        assert [row["attributes"]["n"] for row in batches[1].rows()] == list(range(10))
        assert (await broker.status())["pubend"]["lost_events"] == 200


# ── the command line ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def published(tmp_path: Path) -> Any:
    """The address of a broker at which something was published."""
    broker = DurableBroker(tmp_path)

    async def begin() -> None:
        await broker.start()
        await publish(broker.address, 30)

    asyncio.run(begin())
    yield broker.address
    broker.kill()


def test_the_command_line(
    published: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str, status: int = 0) -> str:
        assert run(["log", *arguments]) == status
        return capsys.readouterr().out

    (account,) = json.loads(said("list", published, "--json"))["pubends"]
    assert account["events"] == 30
    assert account["pubend"] in said("list", published)
    asked = ("read", published, "third = 2", "--columns", "n,third", "--limit", "2")
    lines = said(*asked, "--json").splitlines()
    assert [json.loads(line) for line in lines] == [{"n": 2, "third": 2}, {"n": 5, "third": 2}]
    assert said(*asked) == "n=2  third=2\nn=5  third=2\n"
    whole = json.loads(said("read", published, "--json", "--limit", "1"))
    assert whole["attributes"] == {"n": 0, "third": 0, "ratio": 0.0}
    assert whole["payload"] == "x" * 100
    said("read", published, "--arrow", str(tmp_path / "out.arrow"))
    with pyarrow.OSFile(str(tmp_path / "out.arrow")) as file:
        assert pyarrow.ipc.open_file(file).read_all().num_rows == 30
    last = account["last_tick"]
    assert (
        said("cursor", published, "spark", "--to", str(last))
        == f"cursor spark set to tick {last}\n"
    )
    (cursor,) = json.loads(said("cursors", published, "--json"))[account["pubend"]]
    assert (cursor["name"], cursor["tick"]) == ("spark", last)
    assert "spark" in said("cursors", published)
    said("cursor", published, "spark", "--drop")
    said("cursor", published, "spark", status=2)
    said("read", published, "--since", "yesterday", status=2)
    said("read", published, "--columns", ",", status=2)
    for number in ("9" * 30, "9" * 5000):
        said("read", published, "--since", number, status=2)
        said("cursor", published, "nightly", "--to", number, status=2)


def test_without_await(published: str) -> None:
    rows = [row for batch in motet.read_sync(published, columns=["n"]) for row in batch.rows()]
    assert rows == [{"n": n} for n in range(30)]
    with motet.open_log_sync(published) as log:
        (account,) = log.describe()
        log.set_cursor("me", account.last_tick)
        log.drop_cursor("me")
        for batch in log.read(limit=1):
            assert len(batch) == 1
