"""A publisher has moved from pubend A to pubend B: what waits for what at one broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from motet.model import Hop
from motet.protocol.contract import SetTimer
from motet.protocol.delivery.machine import DeliveryMachine
from motet.protocol.delivery.messages import AckExpected, Knowledge, Nack
from motet.protocol.delivery.spans import CutRecord, PredecessorRecord, Record, Span
from motet.protocol.delivery.stream import Effects, Limits
from motet.protocol.publication import Publication
from motet.protocol.routing.messages import Complete, PubendHere, Subscribe
from tests.unit.delivery.rig import Tables, body, op, wish

A, B = "A.1", "B.1"
SMALL = Limits(memory_events=10, piece_events=4, window_events=6)


def news(since: int, upto: int, *ticks: int, records: tuple[Record, ...] = ()) -> Span:
    batch = [Publication("m", tick, body("t")) for tick in ticks]
    return Span(since, upto, list(ticks), batch, records)


def behind(tick: int, upto: int = 20, cut: tuple[int, int] = (0, 0)) -> PredecessorRecord:
    """What `m` publishes in B from this tick on comes behind what it published in A."""
    return PredecessorRecord(tick, "m", ((A, upto),), cut)


class Edge:
    """A broker between `up`, where both pubends are, and `down`; and its clients."""

    def __init__(self, *clients: str, limits: Limits | None = None) -> None:
        self.tables = Tables("here", ["up", "down"])
        for neighbour in ("up", "down"):
            self.tables.apply(Complete(True), Hop.broker(neighbour))
        for pubend in (A, B):
            self.tables.apply(PubendHere(pubend), Hop.broker("up"))
        for client in clients:
            self.tables.apply(Subscribe(op(client), wish("t")), Hop.client(client))
        self._limits = limits
        self.now = 0.0
        self.timers: dict[object, float] = {}
        self.got: list[tuple[str, str, int]] = []
        """Client, pubend and tick of all events given, in order."""
        self.boot()

    def boot(self) -> None:
        self.machine = DeliveryMachine(self.tables.interests, None, self._limits)
        self.timers.clear()

    def do(self, door: Callable[[DeliveryMachine, Effects], None]) -> Effects:
        out = Effects(self.now)
        door(self.machine, out)
        for timer in out.timers:
            if isinstance(timer, SetTimer):
                self.timers[timer.key] = timer.at
            else:
                self.timers.pop(timer.key, None)
        self.machine.validate()
        self.got += [(name, each.pubend[0], t) for name, each in out.deliver for t in each.ticks]
        return out

    def wait(self, seconds: float) -> list[Effects]:
        until = self.now + seconds
        found = []
        while due := [(at, str(key), key) for key, at in self.timers.items() if at <= until]:
            at, _, key = min(due, key=lambda each: each[:2])
            del self.timers[key]
            self.now = max(self.now, at)
            found.append(self.do(lambda m, o, key=key: m.alarm(key, o)))  # type: ignore[misc]
        self.now = until
        return found

    def join(
        self, client: str, start: int = 10, *, durable: bool = False, pubends: str = "AB"
    ) -> None:
        self.attach(client, {}, durable=durable)
        for pubend in (A, B):
            if pubend[0] in pubends:
                self.do(lambda m, o, p=pubend: m.receive("up", AckExpected(p, start, ()), o))  # type: ignore[misc]
                self.do(lambda m, o, p=pubend: m.clients.start(op(client), p, start, o))  # type: ignore[misc]

    def attach(self, client: str, cursors: Mapping[str, int], *, durable: bool = False) -> Effects:
        return self.do(lambda m, o: m.clients.attach(client, cursors, o, durable=durable))

    def told(self, pubend: str, span: Span, again: bool = False, asof: int = 0) -> Effects:
        frame = Knowledge(pubend, span, again, asof=asof)
        return self.do(lambda m, o: m.receive("up", frame, o))

    def acked(self, client: str, pubend: str, tick: int) -> Effects:
        return self.do(lambda m, o: m.clients.acked(client, pubend, tick, o))

    def of(self, client: str) -> list[tuple[str, int]]:
        return [(pubend, tick) for name, pubend, tick in self.got if name == client]

    def gated(self, client: str) -> PredecessorRecord | None:
        return self.machine._stream(B).subend.positions[client].gate

    def settled(self, client: str) -> int:
        subend = self.machine._stream(B).subend
        return subend.positions[client].settled(subend.horizon)


def asked(outs: list[Effects], pubend: str) -> list[tuple[int, int]]:
    frames = [f for out in outs for _, f in out.send if isinstance(f, Nack) and f.pubend == pubend]
    return [each for frame in frames for each in frame.ranges]


def test_events_behind_the_record_wait_for_the_earlier_ones() -> None:
    edge = Edge("c")
    edge.join("c")
    edge.told(B, news(11, 40, 15, 31, 35, records=(behind(30),)))
    assert edge.of("c") == [("B", 15)], "what lies before the record does not wait"
    edge.told(A, news(11, 20, 12, 20))
    assert edge.of("c") == [("B", 15), ("A", 12), ("A", 20)]
    edge.acked("c", A, 12)
    assert edge.gated("c") is not None
    edge.acked("c", A, 20)
    assert edge.of("c") == [("B", 15), ("A", 12), ("A", 20), ("B", 31), ("B", 35)]
    edge.told(B, news(41, 50, 45))
    assert edge.of("c")[-1] == ("B", 45)
    assert edge.machine._stream(B).subend.live == 1


def test_nobody_waits_who_has_the_earlier_events() -> None:
    edge = Edge("c")
    edge.join("c")
    edge.told(A, news(11, 20, 12))
    edge.acked("c", A, 12)
    edge.told(B, news(11, 40, 31, records=(behind(30),)))
    assert edge.of("c") == [("A", 12), ("B", 31)]
    assert not edge.machine.clients.gates.waiting


def test_silence_of_the_earlier_pubend_is_asked_for() -> None:
    """The last events there may have been for others: nobody would tell."""
    edge = Edge("c")
    edge.join("c")
    edge.told(B, news(11, 40, 31, records=(behind(30),)))
    assert asked(edge.wait(0.5), A) == [(11, 20)]
    edge.told(A, Span(11, 20), again=True)
    assert edge.of("c") == [("B", 31)]


def test_who_does_not_read_the_earlier_pubend_does_not_wait() -> None:
    edge = Edge("c", "d")
    edge.join("c")
    edge.join("d", pubends="B")
    edge.told(B, news(11, 40, 31, records=(behind(30),)))
    assert edge.got == [("d", "B", 31)]


def test_who_began_above_the_earlier_events_does_not_wait() -> None:
    edge = Edge("c")
    edge.join("c", start=25)
    edge.told(B, news(26, 40, 31, records=(behind(30),)))
    assert edge.of("c") == [("B", 31)]


def test_a_client_that_dawdles_stops_nobody_else_and_keeps_its_position() -> None:
    edge = Edge("c", "d", limits=SMALL)
    edge.join("c", durable=True)
    edge.join("d")
    edge.told(A, news(11, 20, 12))
    edge.acked("d", A, 12)
    edge.told(B, news(11, 30, records=(behind(30),)))
    for tick in range(31, 61):
        edge.told(B, news(tick, tick, tick))
        edge.acked("d", B, tick)
    assert [t for name, _, t in edge.got if name == "d"] == [12, *range(31, 61)]
    assert edge.of("c") == [("A", 12)]
    assert edge.settled("c") == 29
    assert edge.machine._stream(B).memory.events <= 10
    # what it waited for is not in memory any more, so it is requested again
    out = edge.acked("c", A, 12)
    assert asked([out], B)[0][0] == 30
    edge.told(B, news(30, 33, 31, 32, 33, records=(behind(30),)), again=True)
    assert edge.of("c") == [("A", 12), ("B", 31), ("B", 32), ("B", 33)]


def test_nothing_is_requested_for_a_client_at_a_gate() -> None:
    edge = Edge("c")
    edge.join("c", durable=True)
    edge.told(A, news(11, 20, 12))
    edge.told(B, news(11, 40, 31, records=(behind(30),)))
    edge.told(B, news(60, 60, 60))
    assert asked(edge.wait(60.0), B) == []


def test_an_absent_client_meets_the_record_again() -> None:
    edge = Edge("c")
    edge.join("c", durable=True)
    edge.told(A, news(11, 20, 12))
    edge.told(B, news(11, 40, 31, records=(behind(30),)))
    edge.do(lambda m, o: m.clients.detach("c", o))
    edge.attach("c", {}, durable=True)
    assert edge.of("c") == [("A", 12), ("A", 12)]
    edge.acked("c", A, 12)
    assert edge.of("c")[-1] == ("B", 31)


def test_a_broker_that_restarts_meets_the_record_again() -> None:
    edge = Edge("c")
    edge.join("c", durable=True)
    edge.told(A, news(11, 20, 12))
    edge.told(B, news(11, 40, 31, records=(behind(30),)))
    edge.boot()
    for pubend, floor in ((A, 11), (B, 29)):
        edge.machine.restore(pubend, floor)
        edge.do(lambda m, o, p=pubend: m.clients.start(op("c"), p, 10, o))  # type: ignore[misc]
    edge.attach("c", {}, durable=True)
    edge.told(B, news(30, 40, 31, records=(behind(30),)), again=True)
    assert edge.gated("c") == behind(30)
    edge.told(A, news(12, 20, 12), again=True)
    edge.acked("c", A, 12)
    assert edge.of("c") == [("A", 12), ("A", 12), ("B", 31)]


def test_a_durable_position_in_the_earlier_pubend_is_noted_before_later_events_are_given() -> None:
    edge = Edge("c")
    edge.join("c", durable=True)
    edge.told(A, news(11, 20, 12))
    edge.told(B, news(11, 40, 31, records=(behind(30),)))
    out = edge.acked("c", A, 12)
    assert [(each.pubend, each.upto) for each in out.floors] == [(A, 20)]
    assert edge.of("c")[-1] == ("B", 31)


@pytest.mark.parametrize("end", ["destroyed", "alone", "ended", "lapsed"])
def test_nobody_waits_for_a_pubend_that_is_gone(end: str) -> None:
    edge = Edge("c")
    edge.join("c")
    edge.told(B, news(11, 40, 31, records=(behind(30),)))
    assert edge.of("c") == []
    if end == "destroyed":
        out = edge.do(lambda m, o: m.destroyed(A, o))
        lost = [each.pubend for _, each in out.deliver if each.lost]
        assert lost == [A]
        assert [each.pubend for _, each in out.deliver] == [A, B]
    elif end == "alone":
        edge.do(lambda m, o: m.clients.left_alone(m._stream(A), o))
    elif end == "ended":
        edge.do(lambda m, o: m.clients._forget(*found(m), o))
    else:
        edge.do(lambda m, o: m.clients.lift(op("c"), A, 30, o, over=True))
    assert edge.of("c") == [("B", 31)]


def found(machine: DeliveryMachine):  # type: ignore[no-untyped-def]
    stream = machine._stream(A)
    return stream, machine.clients._readers["c"], stream.subend.positions["c"]


def test_a_start_that_is_lifted_above_the_earlier_events_opens_the_gate() -> None:
    edge = Edge("c")
    edge.join("c")
    edge.told(B, news(11, 40, 31, records=(behind(30),)))
    edge.do(lambda m, o: m.clients.lift(op("c"), A, 25, o))
    assert edge.of("c") == [("B", 31)]


def test_older_events_that_a_subscription_wants_wait_as_well() -> None:
    edge = Edge("c")
    edge.machine.clients.reach = lambda _op, _pubend: 0
    edge.join("c", start=50)
    past = news(1, 50, 5, 31, records=(behind(30),))
    edge.told(B, past, again=True, asof=50)
    assert edge.of("c") == [("B", 5)]
    assert asked(edge.wait(5.0), B) == [], "not while the gate is closed"
    edge.told(A, news(1, 50, 12, 20), again=True, asof=50)
    edge.acked("c", A, 50)
    out = edge.wait(5.0)
    assert asked(out, B)[0] == (30, 50)
    edge.told(B, past, again=True, asof=50)
    assert edge.of("c") == [("B", 5), ("A", 12), ("A", 20), ("B", 31)]


def test_in_total_order_the_ticks_suffice() -> None:
    edge = Edge("c")
    edge.do(lambda m, o: m.clients.attach("c", {}, o, awaited=()))
    for pubend in (A, B):
        edge.do(lambda m, o, p=pubend: m.clients.start(op("c"), p, 10, o))  # type: ignore[misc]
    edge.told(B, news(11, 40, 31, records=(behind(30),)))
    edge.told(A, news(11, 40, 12))
    assert edge.of("c") == [("A", 12), ("B", 31)]


def test_a_chain_of_moves() -> None:
    """A, then B, then A again: the record there names B."""
    edge = Edge("c")
    edge.join("c")
    back = PredecessorRecord(50, "m", ((B, 35),))
    edge.told(A, news(11, 60, 12, 55, records=(back,)))
    edge.told(B, news(11, 40, 31, records=(behind(30),)))
    assert edge.of("c") == [("A", 12)]
    edge.acked("c", A, 12)
    assert edge.of("c") == [("A", 12), ("B", 31)]
    edge.acked("c", B, 31)
    assert edge.of("c") == [("A", 12), ("B", 31), ("A", 55)]


def test_a_record_goes_to_every_neighbour_that_reads_anything() -> None:
    edge = Edge("c")
    assert edge.told(B, news(11, 30, records=(behind(30),))).send == []
    edge.tables.apply(Subscribe(op("far"), wish("other")), Hop.broker("down"))
    (sent,) = edge.told(B, news(31, 50, records=(behind(45),))).send
    name, frame = sent
    assert name == "down"
    assert isinstance(frame, Knowledge)
    assert frame.span.records == (behind(45),)
    out = edge.do(lambda m, o: m.receive("down", Nack(B, ((20, 50),)), o))
    again = [f.span.records for _, f in out.send if isinstance(f, Knowledge)]
    assert again == [(behind(30), behind(45))]


# ── blocks ───────────────────────────────────────────────────────────────────────────────


def cut(number: int, tick: int, last: int) -> CutRecord:
    orders = tuple(f"{tick:06}" for _ in range(tick, last))
    return CutRecord(tick, f"tx{number}", (), (A, B), last, number, orders)


def test_events_in_a_block_that_waits_are_waited_for() -> None:
    edge = Edge("c")
    edge.join("c")
    edge.told(A, news(11, 20, 18, 19, records=(cut(1, 17, 19),)))
    assert edge.of("c") == [], "the half in B is missing"
    edge.told(B, news(11, 40, 15, 16, 31, records=(cut(1, 14, 16), behind(30))))
    assert edge.of("c") == [("B", 15), ("B", 16), ("A", 18), ("A", 19)]
    edge.acked("c", A, 19)
    assert edge.of("c")[-1] == ("B", 31)


def test_a_block_does_not_wait_for_a_cut_that_only_ticks_behind_the_gate_could_show() -> None:
    """After a restart the client is behind the cut in B, which is not read again; and the next cut
    there lies behind the record, which waits for the block."""
    edge = Edge("c")
    edge.join("c", start=16)
    edge.do(lambda m, o: m.receive("up", AckExpected(B, 50, (), (9, 45)), o))
    edge.told(B, news(17, 40, 31, records=(behind(30, cut=(1, 16)),)))
    edge.told(A, news(17, 20, 18, 19, records=(cut(1, 17, 19),)))
    assert edge.of("c") == [("A", 18), ("A", 19)]
    edge.acked("c", A, 19)
    assert edge.of("c")[-1] == ("B", 31)


def test_a_lost_pubend_is_reported_before_the_gate_opens() -> None:
    """Its events that wait in a block come first, too."""
    edge = Edge("c")
    edge.join("c")
    edge.told(A, news(11, 20, 18, 19, records=(cut(2, 17, 19),)))
    edge.told(B, news(11, 40, 31, records=(behind(30),)))
    out = edge.do(lambda m, o: m.destroyed(A, o))
    assert out.deliver == []
    edge.do(lambda m, o: m.receive("up", AckExpected(B, 40, (), (2, 29)), o))
    assert edge.of("c") == [("A", 18), ("A", 19), ("B", 31)]


def test_frames_are_never_delivered_out_of_the_order_of_a_pubend() -> None:
    edge = Edge("c", limits=SMALL)
    edge.join("c")
    edge.told(B, news(11, 40, 12, 13, 14, 15, 16, 17, 31, records=(behind(30),)))
    edge.acked("c", B, 14)
    edge.told(A, news(11, 20))
    edge.acked("c", B, 17)
    assert edge.of("c") == [("B", tick) for tick in (12, 13, 14, 15, 16, 17, 31)]
