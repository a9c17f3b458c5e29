"""A broker whose log of events is gone, but not its journal."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path

import pytest
from msgspec import Raw

import motet
from motet.broker.core.broker import BrokerCore
from motet.broker.core.durable import Durable
from motet.broker.driver.service import open_broker
from motet.broker.overlay.topology import Wiring
from motet.client.session.machine import ClientMachine
from motet.client.session.state import Settled
from motet.errors import LogCorrupted, StorageError
from motet.model import Filter, encode_event
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Closed, Received, Remembered
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.session.messages import ClientHello
from motet.runtime.log import file_log
from motet.runtime.pubend.shelf import CATALOGUE


async def folder_of(tmp_path: Path) -> Path:
    """Of a broker that has logged something; its log of events is in `pubend`."""
    async with motet.local(brokers=1, data=tmp_path) as overlay, overlay.connect("alice") as alice:
        await alice.advertise("x = 1")
        await alice.send({"x": 1})
    return tmp_path / "B1"


def segment(pubend: Path) -> Path:
    return next(pubend.glob("*.log"))


def flip(pubend: Path) -> None:
    path = segment(pubend)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "says", "set_aside"),
    [
        (shutil.rmtree, "is missing or empty", False),
        (lambda pubend: (pubend / CATALOGUE).unlink(), "is missing or empty", True),
        (lambda pubend: segment(pubend).unlink(), "all segments are missing", True),
        (flip, "is broken", True),
    ],
)
async def test_a_loss_is_refused_until_it_is_accepted_and_then_told(
    damage: Callable[[Path], None],
    says: str,
    set_aside: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = await folder_of(tmp_path)
    damage(data / "pubend")
    before = sorted(data.rglob("*"))
    config, wiring = BrokerConfig("B1", root="B1"), Wiring("inproc://lost-log")
    with pytest.raises(LogCorrupted, match=f"--name B1 --data {data} --accept-loss`") as refused:
        open_broker(config, wiring, data)
    assert says in str(refused.value)
    assert sorted(data.rglob("*")) == before
    caplog.clear()
    driver = open_broker(config, wiring, data, accept_loss=True)
    await driver.start()
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert says in record.message
    assert "up to now are lost, and so are all named cursors" in record.message
    assert (data / "pubend.damaged-1").exists() == set_aside
    assert ("are now in" in record.message) == set_aside
    state = driver.status()["pubend"]
    assert state["destroyed_upto"] == state["lost_upto"] > 0
    await driver.stop()


def refuse_to_write(*_: object) -> None:
    raise OSError(ENOSPC, "No space left on device")


async def test_a_loss_is_not_forgotten_if_its_report_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = await folder_of(tmp_path)
    shutil.rmtree(data / "pubend")
    config, wiring = BrokerConfig("B1", root="B1"), Wiring("inproc://lost-log")
    with monkeypatch.context() as patch:
        patch.setattr(file_log, "write_all", refuse_to_write)
        with pytest.raises(StorageError, match="No space left"):
            open_broker(config, wiring, data, accept_loss=True)
    with pytest.raises(LogCorrupted, match="is missing or empty"):
        open_broker(config, wiring, data)
    driver = open_broker(config, wiring, data, accept_loss=True)
    await driver.start()
    assert driver.status()["pubend"]["destroyed_upto"] > 0
    await driver.stop()
    assert sorted(each.name for each in data.iterdir()) == ["journal", "pubend"]


# ── numbers ──────────────────────────────────────────────────────────────────────────────

CONFIG = BrokerConfig("A", (), incarnation=100)
BODY = Raw(encode_event({"x": 1}, b""))
NOW = 9.0
LOST = Remembered(9_000_000, destroyed_upto=9_000_000)


class Publisher:
    """A real client machine at a broker that can be started again on its journal."""

    def __init__(self) -> None:
        self.core = BrokerCore(CONFIG)
        self.journal = self.core.recover(0.0, Remembered()).persist
        self.machine = ClientMachine("alice", instance="p1")
        self.settled: list[Settled] = []
        self._connection = 0
        self.meet()
        self.machine.request("advertise", Filter.parse("x = 1"))
        self.talk()

    def meet(self) -> None:
        self._connection += 1
        self.machine.opened()
        self.talk()

    def talk(self, *, deaf: bool = False) -> None:
        """What the client has to say; the answers arrive, unless the connection dies."""
        while frames := self.take():
            for frame in frames:
                out = self.core.step(Received(self._connection, frame), NOW)
                self.journal += out.persist
                for _, answer in () if deaf else out.deliver:
                    self.machine.received(answer)

    def take(self) -> list[Frame]:
        effects = self.machine.take()
        self.settled += [each for each in effects.happened if isinstance(each, Settled)]
        return effects.send

    def restart(self, remembered: Remembered) -> None:
        durable = Durable(CONFIG)
        durable.replay(self.journal)
        self.core = BrokerCore(CONFIG, durable)
        self.journal += self.core.recover(NOW, remembered).persist


def test_publications_unanswered_before_a_log_loss_get_an_unknown_fate() -> None:
    alice = Publisher()
    alice.machine.publish([BODY] * 3)
    alice.talk(deaf=True)
    alice.machine.closed()
    alice.machine.publish([BODY])  # meanwhile
    alice.restart(LOST)
    alice.meet()
    ((upto, _, why),) = alice.settled
    assert upto == 3
    assert why is not None
    assert why.error == "Disconnected"
    assert "log was destroyed" in why.text
    soft = alice.core.clients["alice"]
    assert (soft.settled, soft.published) == (3, 4), "the fourth is on its way into the new log"
    assert alice.core.streams.unlogged.pending[-1].upto == 4
    alice.machine.closed()
    alice.restart(LOST)  # again, before the new log has anything
    alice.meet()
    assert len(alice.settled) == 1
    assert alice.core.clients["alice"].published == 4


def test_publications_that_never_arrived_before_a_log_loss_are_sent_again() -> None:
    alice = Publisher()
    alice.machine.publish([BODY] * 2)
    alice.talk(deaf=True)
    alice.journal += alice.core.step(Closed(1), NOW).persist
    alice.machine.publish([BODY] * 2)
    alice.take()  # lost on the way
    alice.machine.closed()
    alice.restart(LOST)
    alice.meet()
    assert [each.upto for each in alice.settled] == [2]
    assert alice.core.clients["alice"].published == 4
    assert len(alice.core.streams.unlogged.pending[-1].batch) == 2


def test_a_client_cannot_claim_numbers_that_do_not_exist() -> None:
    core = BrokerCore(CONFIG)
    core.recover(0.0, Remembered())
    for published in (-1, 1 << 60):
        hello = ClientHello(PROTOCOL_VERSION, "alice", published=published)
        (close,) = core.step(Received(1, hello), 0.0).close
        assert close.error == "ProtocolError"


def test_a_session_that_begins_after_the_loss_owes_nothing_of_it() -> None:
    alice = Publisher()
    alice.restart(LOST)
    before = alice.core.clients["alice"].epoch
    out = alice.core.step(Received(7, ClientHello(PROTOCOL_VERSION, "bob")), NOW)
    after = alice.core.clients["bob"].epoch
    assert out.persist
    assert alice.core.durable.delivery.lost_with(before) == 9_000_000
    assert alice.core.durable.delivery.lost_with(after) == 0
