"""Sessions that are over leave the pubend's log, but never before the journal says so."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec import Raw

from motet.broker.core.broker import BrokerCore
from motet.broker.core.durable import Durable
from motet.broker.driver.pubend import Confirms, LoggedPubend
from motet.model import Filter, encode_event
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Fact, Logged, LogRun, Output, Received, Remembered
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.session import messages as session
from motet.runtime.pubend import PubendLog

BODY = Raw(encode_event({"x": 1}, b""))
CONFIG = BrokerConfig("A", (), incarnation=100)


def published() -> tuple[BrokerCore, list[Fact], str]:
    """A broker, its journal, and the epoch in which alice has published one event."""
    core = BrokerCore(CONFIG)
    facts = core.recover(0.0, Remembered()).persist
    facts += core.step(Received(1, session.ClientHello(PROTOCOL_VERSION, "alice")), 0.0).persist
    request = session.AdvertiseRequest(1, Filter.parse("x = 1"))
    facts += core.step(Received(1, request), 0.0).persist
    out = core.step(Received(1, session.Publish(1, [BODY], True)), 1.0)
    assert [type(item) for item in out.log] == [LogRun]
    return core, facts, core.clients["alice"].epoch


def test_a_session_is_forgotten_when_its_last_events_have_arrived() -> None:
    core, _, epoch = published()
    out = core.step(Received(1, session.Goodbye()), 2.0)
    assert out.forgotten == [], "an advertisement waits for what is on its way into the log"
    out = core.step(Logged(1), 3.0)
    assert out.forgotten == [("alice", epoch)]
    assert core.streams.retirement.last_ticks == {}


def test_recovery_forgets_ended_sessions_that_the_log_remembers() -> None:
    core, facts, epoch = published()
    remembered = Remembered(1_000_000, {("alice", epoch): 1, ("bob", "A-1.1"): 7})
    for over in (False, True):
        if over:
            facts += core.step(Received(1, session.Goodbye()), 2.0).persist
            facts += core.step(Logged(1), 3.0).persist
        durable = Durable(CONFIG)
        durable.replay(facts)
        out = BrokerCore(CONFIG, durable).recover(4.0, remembered)
        assert out.forgotten == [("alice", epoch), ("bob", "A-1.1")][not over :]


class Journal:
    durable = 0


async def test_the_log_forgets_behind_the_journal_and_behind_what_waits(tmp_path: Path) -> None:
    log = PubendLog.open(tmp_path, "A.100")
    told = asyncio.Queue[int]()
    pubend = LoggedPubend(log, asyncio.get_running_loop().call_later)
    pubend.watch(told.put_nowait, lambda _: None)
    journal, out = Journal(), Output()
    confirms = Confirms(journal, lambda _: None, pubend.forget)  # type: ignore[arg-type]
    pubend._waiting.append(LogRun(5, "alice", "A-1", 1, [BODY]))
    out.forgotten.append(("alice", "A-1"))
    confirms.add(1, out)
    confirms.before(lambda: None)()
    assert pubend._waiting
    journal.durable = 1
    confirms.before(lambda: None)()
    assert (log.last_tick, log.state.sessions()) == (5, [])
    assert await told.get() == 1
    await pubend.close()
