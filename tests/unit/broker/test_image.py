"""A snapshot shows everything: what is rebuilt from it is the same broker, now and later."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from motet.broker.core import records
from motet.broker.core.broker import BrokerCore
from motet.broker.core.durable import Durable
from motet.broker.core.rebuild import founding, picture, rebuild
from motet.errors import LogCorrupted, MisuseError, WrittenByAnotherVersion
from motet.model import Filter, OpId
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Fact, Input, Received
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link import messages as link
from motet.protocol.machine import FACT, FOUNDED, Snapshot
from motet.protocol.routing import messages as routing
from motet.protocol.session import messages as session
from motet.protocol.transactions.state import ClientPart, Held, OpenInvitation

CONFIG = BrokerConfig("A", ("B", "C"), incarnation=100)
B, C, ALICE, BOB, CAROL = 1, 2, 3, 4, 5
ADDED = ("pubends", "retired", "starts", "lasting")
"""Parts that version 1 did not have."""
TRANSACTIONAL = ("windows", "versions", "transactions")
"""Those that version 2 did not have."""


def eventful() -> list[Received]:
    """Leaves something in every drawer: waits, withdrawals, failures, free bits, outboxes."""
    far = OpId("carol", "B-7", 1)
    return [
        Received(B, link.LinkHello(PROTOCOL_VERSION, "B", 5, 0, 0)),
        Received(B, link.Control(1, (routing.Complete(True),))),
        Received(ALICE, session.ClientHello(PROTOCOL_VERSION, "alice")),
        Received(BOB, session.ClientHello(PROTOCOL_VERSION, "bob")),
        Received(ALICE, session.AdvertiseRequest(1, Filter.parse("x > 1"), wait=False)),
        Received(BOB, session.SubscribeRequest(1, Filter.parse("x = 5 or y like 'a%'"))),
        Received(B, link.Control(2, (routing.ClientHere("carol", "B-7"),))),
        Received(B, link.Control(3, (routing.Advertise(far, Filter.parse("y >= 'a'"), True),))),
        Received(BOB, session.SubscribeRequest(2, Filter.parse("y = 'b'"))),
        Received(B, link.Control(4, (routing.Unadvertise(far),))),
        Received(BOB, session.UnsubscribeRequest(3, 2)),
        Received(BOB, session.UnsubscribeRequest(4, 99)),
        Received(CAROL, session.ClientHello(PROTOCOL_VERSION, "carla", keep_s=60.0)),
        Received(CAROL, session.SubscribeRequest(1, Filter.parse("x > 7"), name="sevens")),
        Received(CAROL, session.SubscribeRequest(2, Filter.parse("x > 8"), since={"B.5": 9})),
        Received(CAROL, session.Goodbye(stay=True, done={1: {"B.5": 12}})),
        Received(ALICE, session.Goodbye()),
        Received(C, link.LinkHello(PROTOCOL_VERSION, "C", 6, 0, 0)),
    ]


def lived(inputs: Sequence[Input], core: BrokerCore) -> list[Fact]:
    return [
        fact for now, given in enumerate(inputs) for fact in core.step(given, float(now)).persist
    ]


def written(facts: list[Fact]) -> list[tuple[int, bytes]]:
    return [
        (FOUNDED, founding(CONFIG)),
        *((FACT, records.encode(fact)) for fact in facts),
    ]


def snapshot_of(durable: Durable) -> Snapshot:
    payloads = [payload for _, payload in picture(durable)]
    return Snapshot(records.MACHINE_VERSION, payloads)


@pytest.mark.parametrize("position", range(25))
def test_a_snapshot_at_any_fact_and_the_facts_since_give_the_same_broker(position: int) -> None:
    core = BrokerCore(CONFIG)
    journal = written(lived(eventful(), core))
    assert len(journal) > 14
    position = min(position + 1, len(journal))
    half_way = rebuild(CONFIG, None, journal[:position])
    again = rebuild(CONFIG, snapshot_of(half_way), journal[position:])
    assert again.digest() == core.durable.digest()
    for name, ledger in core.durable.ledgers.items():
        assert list(again.ledgers[name].outbox) == list(ledger.outbox)
    BrokerCore(CONFIG, again).validate()


def test_the_example_run_fills_every_part_of_an_image() -> None:
    core = BrokerCore(CONFIG)
    lived(eventful(), core)
    state = core.durable.routing.state
    assert state.waits
    assert state.waits.removals
    assert core.durable.requests.deadlines
    assert state.bits.free
    assert any(s.failures for s in core.durable.sessions)
    assert any(s.names and s.done and s.left_at for s in core.durable.sessions)
    assert all(ledger.outbox for ledger in core.durable.ledgers.values())
    assert {type(part).__name__ for part in map(_decoded, picture(core.durable))} >= {
        "HeadImage",
        "HopsImage",
        "SubscriptionsImage",
        "ClientsImage",
        "DurableClientsImage",
        "WaitsImage",
        "WithdrawalsImage",
        "SessionsImage",
        "LedgersImage",
        "OutboxImage",
        "DeadlinesImage",
    }


def _decoded(record: tuple[int, bytes]) -> object:
    kind, payload = record
    if kind == FOUNDED:
        return records.decode_founded(payload)
    return next(records.decode_parts(records.MACHINE_VERSION, [payload]))


def test_a_journal_of_another_broker_is_refused() -> None:
    with pytest.raises(MisuseError, match="journal of A, not of Z"):
        rebuild(replace(CONFIG, name="Z"), None, written([]))


def test_covering_does_not_change_under_a_state() -> None:
    with pytest.raises(MisuseError, match="covering cannot change"):
        rebuild(replace(CONFIG, covering=True), None, written([]))


def test_a_journal_without_a_founding_record_is_refused() -> None:
    with pytest.raises(LogCorrupted, match="empty"):
        rebuild(CONFIG, None, [])
    with pytest.raises(LogCorrupted, match="founds it"):
        rebuild(CONFIG, None, [(FACT, b"")])


# ── versions ─────────────────────────────────────────────────────────────────────────────


def test_an_older_snapshot_is_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a snapshot of a version whose head had its fields in another order."""
    core = BrokerCore(CONFIG)
    lived(eventful(), core)
    now = snapshot_of(core.durable)

    def swap(parts):  # type: ignore[no-untyped-def]
        return ([p[0], p[2], p[1], *p[3:]] if p[0] == "head" else p for p in parts)

    founded, *parts = now.payloads
    old = [msgspec.msgpack.encode(part) for part in swap(map(msgspec.msgpack.decode, parts))]
    monkeypatch.setattr(records, "MACHINE_VERSION", records.MACHINE_VERSION + 1)
    monkeypatch.setitem(records.MIGRATIONS, now.version, swap)
    again = rebuild(CONFIG, Snapshot(now.version, [founded, *old]), [])
    assert again.digest() == core.durable.digest()


def test_a_snapshot_of_version_1_is_taken_in() -> None:
    """It knew nothing of pubends, nor of durable clients."""
    core = BrokerCore(CONFIG)
    lived([each for each in eventful() if each.connection != CAROL], core)
    founded, *parts = snapshot_of(core.durable).payloads
    cut = {"head": lambda p: p[:-1], "subs": _rows_cut, "waits": _rows_cut}
    plain = [part for part in map(msgspec.msgpack.decode, parts) if part[0] not in ADDED]
    assert cut.keys() <= {part[0] for part in plain}
    old = [msgspec.msgpack.encode(cut.get(p[0], lambda p: p)(p)) for p in plain]
    again = rebuild(CONFIG, Snapshot(1, [founded, *old]), [])
    assert again.digest() == core.durable.digest()


def test_a_snapshot_of_version_2_is_taken_in() -> None:
    """It knew nothing of transactions: nothing is tentative, and nothing was decided."""
    core = BrokerCore(CONFIG)
    lived(eventful(), core)
    founded, *parts = snapshot_of(core.durable).payloads
    plain = [part for part in map(msgspec.msgpack.decode, parts) if part[0] not in TRANSACTIONAL]
    for part in plain:
        if part[0] in ("advs", "subs"):
            part[1] = [row[:-5] for row in part[1]]
    old = [msgspec.msgpack.encode(part) for part in plain]
    again = rebuild(CONFIG, Snapshot(2, [founded, *old]), [])
    before, after = core.durable.routing.state, again.routing.state
    assert [entry.id for entry in before.subscriptions]
    assert [(e.id, e.filter, e.source, e.start) for e in after.subscriptions] == [
        (e.id, e.filter, e.source, e.start) for e in before.subscriptions
    ]
    assert not again.marks.unsettled
    assert again.transactions.decisions.state.number == CONFIG.incarnation
    BrokerCore(CONFIG, again).validate()


def test_a_snapshot_of_version_3_has_no_open_plans_any_more() -> None:
    """Clients did their parts of plans themselves then; such open parts are dropped."""
    plain = partial(msgspec.to_builtins, builtin_types=(bytes,))  # as in a snapshot
    core = BrokerCore(CONFIG)
    local = core.durable.transactions.participant.open("x/A-1.1/1", 5.0)
    local.parts["x"] = ClientPart("A-1.1")
    asked = OpenInvitation("x", "A-1.1", "1", OpId("y", "A-1.2", 3))
    planned = {**plain(asked), "op": None, "steps": [["subscribe", "1"]]}
    undo = Held(local.tx, OpId("x", "A-1.1", 2), session.UnsubscribeRequest(2, 1))
    follow = [local.tx, ["x", "A-1.1", 4], ["tx-follow", 4, "y/A-1.2/3", 1, [1], 5.0]]
    founded, *parts = map(msgspec.msgpack.decode, snapshot_of(core.durable).payloads)
    (state,) = (part[1] for part in parts if part[0] == "transactions")
    state["locals"][local.tx]["invitations"] = [planned, plain(asked)]
    state["locals"][local.tx]["parts"]["x"]["follow"] = 4
    state["held"] = [plain(undo), follow]
    old = [msgspec.msgpack.encode(part) for part in (founded, *parts)]
    again = rebuild(CONFIG, Snapshot(3, old), []).transactions.image()
    assert again.locals[local.tx].invitations == [asked]
    assert again.held == [undo]
    assert again.locals[local.tx].parts["x"].plan is None


def _rows_cut(part: list[Any]) -> list[Any]:
    return [part[0], [row[:-1] for row in part[1]]]


def test_a_version_that_nothing_leads_from_is_refused() -> None:
    core = BrokerCore(CONFIG)
    payloads = snapshot_of(core.durable).payloads
    with pytest.raises(WrittenByAnotherVersion, match="in between"):
        rebuild(CONFIG, Snapshot(0, payloads), [])
    with pytest.raises(WrittenByAnotherVersion, match="newer"):
        rebuild(CONFIG, Snapshot(records.MACHINE_VERSION + 1, payloads), [])
