"""The twins of clock, timers, journal and transport, and the records of a run."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from msgspec import Raw

from motet.model import encode_event
from motet.protocol.contract import LogRun
from motet.protocol.delivery.stream import ReadWanted
from motet.protocol.frames import Frame
from motet.protocol.hosted.soft import HOME
from motet.protocol.link.messages import ControlAck
from motet.protocol.session.messages import Deliver
from motet.testing.clock import NEVER_S, Agenda, Timers, VirtualClock
from motet.testing.faults import FaultMenu
from motet.testing.history import Spans
from motet.testing.pubend import SimulatedPubend
from motet.testing.topology import Tree, random_tree
from motet.testing.transport import BACKLOG_FRAMES, Connection, End, Network, Wire

# ── clock ────────────────────────────────────────────────────────────────────────────────


def test_happenings_come_in_the_order_of_time_then_of_entry() -> None:
    agenda, seen = Agenda(), list[str]()
    for when, what in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
        agenda.at(when, seen.append, what)
    assert not agenda.run(1.5)
    assert (seen, agenda.now) == (["first", "second"], 1.5)
    assert agenda.run(9.0)
    assert seen[-1] == "late"


def test_patrols_do_not_keep_an_agenda_from_being_at_rest() -> None:
    agenda, seen = Agenda(), list[float]()
    timers = Timers(agenda, VirtualClock(agenda), lambda _: patrol())

    def patrol() -> None:
        seen.append(agenda.now)
        timers.set(HOME, agenda.now + 2.0)

    agenda.at(3.0, seen.append, 0.0)
    timers.set(("lease",), 10 * NEVER_S)
    timers.set(HOME, 1.0)
    assert agenda.run(100.0)
    assert seen == [1.0, 0.0, 3.0, 5.0, 7.0], "as long as something may come of them"


def test_a_timer_that_is_set_again_or_cancelled_does_not_ring() -> None:
    agenda, rang = Agenda(), list[tuple[object, ...]]()
    timers = Timers(agenda, VirtualClock(agenda), rang.append)
    timers.set(("a",), 1.0)
    timers.set(("a",), 3.0)
    timers.set(("b",), 2.0)
    timers.cancel(("b",))
    agenda.run(2.5)
    assert rang == []
    agenda.run(3.0)
    assert rang == [("a",)]


def test_a_clock_that_jumps_makes_timers_ring_early() -> None:
    agenda, rang = Agenda(), list[tuple[object, ...]]()
    clock = VirtualClock(agenda)
    timers = Timers(agenda, clock, rang.append)
    timers.set(("a",), 10.0)
    timers.jump(8.0)
    agenda.run(1.9)
    assert (rang, clock.now()) == ([], 9.9)
    agenda.run(2.0)
    assert rang == [("a",)]


# ── transport ────────────────────────────────────────────────────────────────────────────


class Ear:
    """Somebody who takes down what arrives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[Frame] = []
        self.gone = 0

    def receive(self, end: End, frame: Frame) -> None:
        del end
        self.heard.append(frame)

    def lost(self, end: End) -> None:
        del end
        self.gone += 1


class Line:
    def __init__(self, rates: tuple[float, ...] = (), *, client: bool = False) -> None:
        self.agenda, self.faults = Agenda(), Counter[str]()
        self.network = Network(self.agenda, Random(1), self.faults, (0.001, 0.01))
        self.trouble = Spans()
        self.left, self.right = Ear("A"), Ear("B")
        wire = None if client else Wire(("A", "B"), "A", rates, self.trouble)
        self.connection = Connection(self.left, 1, self.right, 1, wire)
        self.end = self.connection.ends[0]

    def send(self, count: int = 50) -> list[Frame]:
        frames: list[Frame] = [ControlAck(number) for number in range(count)]
        for frame in frames:
            self.network.carry(self.end, frame)
        self.agenda.run(60.0)
        return frames


def test_frames_arrive_in_order() -> None:
    line = Line()
    assert line.send() == line.right.heard


def test_loss_loses_and_is_trouble() -> None:
    line = Line((1.0, 1.0, 1.0, 1.0))
    line.send()
    assert line.right.heard == []
    assert (line.faults, line.trouble.open) == ({"loss": 50}, True)


def test_doubling_doubles_and_is_no_trouble() -> None:
    line = Line((0.0, 1.0, 1.0, 1.0))
    assert sorted(map(repr, line.send() * 2)) == sorted(map(repr, line.right.heard))
    assert len(line.trouble) == 0


def test_delay_keeps_the_order() -> None:
    line = Line((0.0, 0.0, 1.0, 1.0))
    assert line.send() == line.right.heard
    assert len(line.trouble) == 1


def test_reordering_reorders() -> None:
    line = Line((0.0, 0.0, 0.0, 1.0))
    sent = line.send()
    assert sent != line.right.heard
    assert sorted(map(repr, sent)) == sorted(map(repr, line.right.heard))


def test_a_link_that_stalls_hands_over_nothing_before_its_time() -> None:
    line = Line()
    assert line.connection.wire is not None
    line.connection.wire.stalled_until = 3.0
    line.network.carry(line.end, ControlAck(1))
    line.network.carry(line.end, ControlAck(2))
    line.agenda.run(2.9)
    assert line.right.heard == []
    line.agenda.run(3.1)
    assert line.right.heard == [ControlAck(1), ControlAck(2)]


def test_a_cut_loses_what_is_under_way_and_both_ends_notice() -> None:
    line = Line()
    line.network.carry(line.end, ControlAck(1))
    line.network.sever(line.connection)
    line.agenda.run(60.0)
    assert (line.right.heard, line.left.gone, line.right.gone) == ([], 1, 1)


def test_the_peer_of_an_abandoned_connection_notices_the_close() -> None:
    line = Line()
    line.network.carry(line.end, ControlAck(1))
    line.agenda.run(0.0005)
    line.network.abandon(line.end)
    line.agenda.run(60.0)
    assert (line.left.gone, line.right.gone) == (0, 1)


def test_frames_sent_before_a_close_are_received() -> None:
    line = Line()
    line.network.carry(line.end, ControlAck(1))
    line.network.close(line.end)
    line.agenda.run(60.0)
    assert (line.right.heard, line.right.gone) == ([ControlAck(1)], 1)


def test_a_client_that_does_not_read_loses_events_and_is_told_how_many() -> None:
    line = Line(client=True)
    for _ in range(BACKLOG_FRAMES + 1):
        assert line.network.deliver(line.end, Deliver([]))
    assert not line.network.deliver(line.end, Deliver([None] * 3))  # type: ignore[list-item]
    assert (line.end.dropped, line.faults) == (3, {"overflow": 3})
    line.end.backlog = 0
    assert line.network.deliver(line.end, Deliver([]))
    line.agenda.run(60.0)
    assert line.right.heard[-1] == Deliver([], 3)


def test_only_a_share_of_wires_is_faulty() -> None:
    line = Line()
    menu = FaultMenu(rough_links=0.5, loss=0.25, doubling=0.25)
    wires = [line.network.wire(("A", "B"), menu, Spans()) for _ in range(200)]
    assert 60 < sum(bool(wire.rates) for wire in wires) < 140
    assert {wire.rates for wire in wires} == {(), (0.25, 0.5, 0.5, 0.5)}


# ── records ──────────────────────────────────────────────────────────────────────────────


def test_spans_that_touch_become_one() -> None:
    spans = Spans()
    spans.touch(1.0, 2.0)
    spans.begin(1.5)
    spans.touch(1.6, 5.0)
    spans.end(3.0)
    assert len(spans) == 1
    assert spans.meets(4.9, 9.0)
    assert not spans.meets(5.1, 9.0)


@pytest.mark.parametrize(
    ("since", "until", "meets"), [(0, 0.9, False), (0, 1, True), (1.5, 1.6, True), (2.5, 3, False)]
)
def test_spans_know_what_they_meet(since: float, until: float, meets: bool) -> None:
    spans = Spans()
    spans.touch(1.0, 2.0)
    spans.touch(4.0, 5.0)
    assert spans.meets(since, until) is meets


def test_a_tree_has_one_path_between_any_two() -> None:
    tree = Tree((("A", "B"), ("B", "C"), ("B", "D")))
    assert tree.path("A", "D") == ("A", "B", "D")
    assert tree.edges_between("A", "C") == [("A", "B"), ("B", "C")]
    assert tree.behind("A", "B") == ["B", "C", "D"]


def test_random_trees_are_trees() -> None:
    sizes = set()
    for seed in range(50):
        tree = random_tree(Random(seed))
        sizes.add(len(tree.brokers))
        assert len(tree.edges) == len(tree.brokers) - 1
        assert all(tree.path(tree.brokers[0], name) for name in tree.brokers)
    assert sizes == {2, 3, 4, 5, 6, 7}


@pytest.mark.parametrize("acknowledged", [0, 1, 2, 3])
def test_a_pubend_forgets_a_session_only_up_to_where_it_left(acknowledged: int) -> None:
    pubend, body = SimulatedPubend(Agenda(), lambda: 0.0), Raw(encode_event({"x": 1}, b""))
    pubend.watch(lambda _: None, lambda _: None)
    pubend.append([LogRun(1, "ann", "A-1.1", 1, [body])])
    pubend.append([LogRun(2, "bob", "A-1.2", 1, [body])])
    # when both leave, and one of them comes back
    pubend.forget([("ann", "A-1.1"), ("bob", "A-1.2")])
    pubend.append([LogRun(3, "ann", "A-1.1", 2, [body])])
    pubend.acknowledged(acknowledged)
    # then a restart finds what it has published since
    pubend.watch(lambda _: None, lambda _: None)
    assert pubend.remembered().published == {("ann", "A-1.1"): 2}
    # and if it leaves again, nothing
    pubend.forget([("ann", "A-1.1")])
    assert pubend.remembered().published == {}


def test_a_crash_takes_records_in_front_of_the_end_of_a_session() -> None:
    agenda, body = Agenda(), Raw(encode_event({"x": 1}, b""))
    pubend = SimulatedPubend(agenda, lambda: 1.0)
    pubend.watch(lambda _: None, lambda _: None)
    pubend.append([LogRun(1, "ann", "A-1.1", 1, [body])])
    pubend.forget([("ann", "A-1.1")])
    pubend.log.crash(0)
    pubend.watch(lambda _: None, lambda _: None)
    pubend.append([LogRun(1, "ann", "A-1.1", 1, [body])])
    agenda.run(2.0)
    assert pubend.remembered().published == {("ann", "A-1.1"): 1}


def test_a_pubend_drops_acknowledged_records_and_any_excess() -> None:
    agenda = Agenda()
    pubend = SimulatedPubend(agenda, lambda: 0.0, kept_events=2)
    pubend.watch(lambda _: None, lambda _: None)
    body = Raw(encode_event({"x": 1}, b""))
    for tick, sequence in ((1, 1), (2, 2), (3, 4), (4, 5)):
        pubend.append([LogRun(tick, "ann", "A-1.1", sequence, [body])])
    pubend.acknowledged(1)
    assert (pubend.floor, pubend.lost_upto) == (2, 2), "one is done with, one is too much"
    (lost, kept) = pubend.read(ReadWanted("A.1", 1, 9, 100, 1 << 20))
    assert (lost.since, lost.upto, lost.lost) == (1, 2, True)
    assert (kept.ticks, kept.lost) == ([3, 4], False)
    known = pubend.remembered()
    assert known.last_tick == 4
    assert known.published == {("ann", "A-1.1"): 5}
    assert known.skipped == {("ann", "A-1.1"): (3,)}
