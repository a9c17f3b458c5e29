"""What must stay bounded, and what must come right in the end."""

from __future__ import annotations

import pytest

from motet.protocol.delivery.blocks import Cuts
from motet.protocol.delivery.messages import Delivered, Knowledge, Nack
from motet.protocol.delivery.spans import CutRecord
from motet.protocol.delivery.stream import (
    MOST_ASKED,
    MOST_CURIOUS,
    Limits,
    Liveness,
    Patience,
    Stream,
)
from motet.protocol.delivery.total_order import Merge
from tests.unit.delivery.rig import event
from tests.unit.delivery.world import World

LINE = {"r": ["i"], "i": ["r", "a", "b"], "a": ["i"], "b": ["i"]}
SMALL = Limits(memory_events=200, piece_events=50, window_events=100, known_ranges=8)
TOPICS = range(4)


def streams(world: World, broker: str) -> list[Stream]:
    return list(world.machines[broker]._streams.values())


def assert_bounded(world: World, limits: Limits) -> None:
    for broker in world.machines:
        for stream in streams(world, broker):
            assert stream.memory.events <= limits.memory_events
            assert len(stream.known) <= limits.known_ranges
            assert len(stream.asked) <= MOST_ASKED
            for out in stream.outs.values():
                assert len(out.curious) <= MOST_CURIOUS
            for position in stream.subend.positions.values():
                assert position.unacked <= limits.window_events + limits.piece_events


def test_a_client_that_reads_nothing_for_an_hour_costs_little_memory_and_misses_nothing() -> None:
    world = World(LINE, {"P": "r"}, {"x": "a", "y": "a"}, limits=SMALL)
    for client in "xy":
        world.connect(client)
        world.subscribe(client, TOPICS, 1)
    world.run(3.0)
    world.clients["x"].reads = False
    for _ in range(1800):
        world.publish("P", 3)
        world.run(2.0)
        assert world.clients["y"].got[-1][1] == world.logs["P"].ticks[-1], "y must not wait"
    assert_bounded(world, SMALL)
    assert len(world.clients["x"].unread) <= SMALL.window_events
    before = len(world.clients["y"].got)
    world.trim()
    assert world.logs["P"].trimmed < world.logs["P"].ticks[0], "x still needs all of it"
    world.clients["x"].reads = True
    world.process("x")
    world.settle()
    assert len(world.clients["x"].got) == 1800 * 3
    assert len(world.clients["y"].got) == before
    assert_bounded(world, SMALL)
    world.run(30.0)
    world.trim()
    assert world.logs["P"].trimmed == world.logs["P"].last


def test_catching_up_costs_about_as_many_frames_as_pieces() -> None:
    world = World(LINE, {"P": "r"}, {"x": "a"}, limits=SMALL)
    world.connect("x")
    world.subscribe("x", TOPICS, 1)
    world.run(3.0)
    world.disconnect("x")
    for _ in range(100):
        world.publish("P", 50)
        world.run(0.1)
    begin = len(world.frames)
    world.connect("x")
    world.settle()
    pieces = 100 * 50 / SMALL.piece_events
    sent = [f for here, _, f in world.frames[begin:] if here == "r" and isinstance(f, Knowledge)]
    assert sum(len(f.span.ticks) for f in sent) <= 1.5 * 100 * 50
    assert len(world.nacks("a", "i")) <= 3 * pieces


def test_an_intermediate_broker_needs_the_same_memory_however_long_the_stream() -> None:
    world = World(
        LINE,
        {"P": "r"},
        {"x": "a", "y": "b"},
        loss=0.1,
        doubling=0.05,
        jitter_s=0.02,
        limits=SMALL,
    )
    for client, topics in (("x", [0, 1]), ("y", [1, 2])):
        world.connect(client)
        world.subscribe(client, topics, 1)
    for _ in range(2000):
        world.publish("P", 4)
        world.run(0.02)
        if world.count % 20 == 0:
            assert_bounded(world, SMALL)
    world.loss = 0.0
    world.settle()
    assert_bounded(world, SMALL)
    # no storm: about one question per frame that was lost, though memory is smaller than a second
    assert len(world.nacks("a", "i")) < 2000
    assert len(world.nacks("i", "r")) < 2000


def test_a_pubend_that_is_down_is_asked_ever_more_rarely() -> None:
    world = World(LINE, {"P": "r"}, {"x": "a"})
    world.connect("x")
    world.subscribe("x", TOPICS, 1)
    world.run(3.0)
    world.cut("i", "a")
    world.publish("P", 5)
    world.run(0.1)
    world.link_up("i", "a")
    world.crash("i")  # what it remembered is gone, and so is the pubend's broker
    world.crash("r")
    world.boot("i")
    world.publish("P")
    begin = len(world.frames)
    world.run(120.0)
    asked = [f for _, _, f in world.frames[begin:] if isinstance(f, Nack)]
    assert 2 <= len(asked) <= 2 * 30
    world.boot("r")
    world.settle(5.0)


def test_a_client_with_a_cursor_older_than_retention_is_told_the_loss_and_continues() -> None:
    world = World(LINE, {"P": "r"}, {"x": "a"}, limits=SMALL)
    world.connect("x")
    world.subscribe("x", TOPICS, 1)
    world.run(3.0)
    world.publish("P", 10)
    world.run(1.0)
    world.disconnect("x")
    for _ in range(100):
        world.publish("P", 10)
        world.run(0.1)
    log = world.logs["P"]
    trimmed = log.trimmed = log.ticks[500]  # by age or size, whoever needs it
    world.trimming = False
    world.connect("x")
    world.settle()
    client = world.clients["x"]
    assert client.lost
    assert all(low <= high <= trimmed for _, low, high in client.lost)
    assert client.got[-1][1] == log.ticks[-1]


def test_clients_in_total_order_see_the_same_stream_though_one_pubend_is_quiet() -> None:
    roots = {"P": "r", "Q": "a", "R": "b"}
    world = World(LINE, roots, {"x": "a", "y": "b", "z": "r"}, merged=("x", "y", "z"))
    for client in world.clients:
        world.connect(client)
        world.subscribe(client, TOPICS, 1)
    world.run(3.0)
    for turn in range(60):
        world.publish("PQ"[turn % 2], 3)
        world.run(0.01)
    world.settle()
    orders = [[(p, tick) for p, tick, _, _ in c.got] for c in world.clients.values()]
    assert orders[0] == orders[1] == orders[2]
    assert len(orders[0]) == 180
    assert {pubend for pubend, _ in orders[0]} == {"P", "Q"}
    # quiet pubends are asked for silence, and no more often than events come
    asked = [f for _, _, f in world.frames if isinstance(f, Nack) and f.pubend == "R"]
    assert 0 < len(asked) < 60 * 6


def test_a_pubend_that_is_down_stops_total_order_until_it_is_back() -> None:
    world = World(LINE, {"P": "r", "Q": "b"}, {"x": "a", "y": "a"}, merged=("x",))
    for client in world.clients:
        world.connect(client)
        world.subscribe(client, TOPICS, 1)
    world.run(3.0)
    world.crash("b")
    world.publish("P", 5)
    world.run(10.0)
    assert len(world.clients["x"].got) == 0
    assert len(world.clients["y"].got) == 5
    world.boot("b")
    world.settle()
    assert len(world.clients["x"].got) == 5


# ── a merge by itself ────────────────────────────────────────────────────────────────────


def some(pubend: str, *ticks: int) -> Delivered:
    return Delivered(pubend, ticks[-1], list(ticks), [event("t", t) for t in ticks], (1,))


def test_a_merge_releases_by_tick_and_then_by_pubend() -> None:
    merge = Merge()
    merge.join("B", 0)
    merge.join("A", 0)
    merge.take(some("B", 5, 7), Cuts())
    merge.take(some("A", 5, 9), Cuts())
    merge.reached("B", 7)
    assert merge.release() == []
    merge.reached("A", 9)
    assert [(d.pubend, d.ticks) for d in merge.release()] == [("A", [5]), ("B", [5, 7])]
    assert merge.late() == ["B"]
    assert merge.wanted("B") == 9
    merge.reached("B", 9)
    assert [(d.pubend, d.ticks) for d in merge.release()] == [("A", [9])]


def test_a_merge_tells_which_events_belong_to_a_transaction() -> None:
    merge, cuts = Merge(), Cuts()
    cuts.note(CutRecord(4, "tx", (), last=6, number=1))
    merge.join("A", 0)
    merge.join("B", 0)
    merge.take(some("A", 3, 5, 6, 7), cuts)
    merge.take(some("B", 5), Cuts())
    merge.reached("A", 7)
    merge.reached("B", 7)
    blocks = {(d.pubend, *d.ticks): d.blocks for d in merge.release()}
    mark = ("tx", 4, 6)
    assert blocks == {("A", 3, 5): (mark,), ("B", 5): (), ("A", 6, 7): (mark,)}


def placed(merge: Merge) -> list[tuple[str, list[int], tuple[tuple[int, int], ...]]]:
    return [(d.pubend, d.ticks, d.lost) for d in merge.release()]


def test_a_pubend_joins_above_everything_released() -> None:
    merge = Merge()
    merge.join("A", 0)
    merge.join("M", 0)
    merge.take(some("M", 5), Cuts())
    merge.reached("A", 20)
    merge.reached("M", 20)
    assert placed(merge) == [("M", [5], ())]
    merge.join("B", 3)
    merge.join("X", 3)
    assert (merge.wanted("B"), merge.wanted("X")) == (5, 5)
    # what lies before it in the one order is too late, and not owed; X stands behind M
    merge.take(some("B", 4, 5, 6), Cuts())
    merge.take(some("X", 4, 5), Cuts())
    merge.reached("B", 6)
    merge.reached("X", 6)
    assert placed(merge) == [("X", [5], ()), ("B", [6], ())]


def test_nothing_is_released_while_a_pubend_is_expected() -> None:
    merge = Merge()
    merge.join("A", 0)
    merge.expect_only(["B"])
    merge.take(some("A", 5), Cuts())
    merge.reached("A", 9)
    assert placed(merge) == []
    assert merge.blocker() == "B"
    merge.join("B", 7)
    assert placed(merge) == [("A", [5], ())]
    assert merge.blocker() is None
    merge.expect_only(["A", "C"])
    merge.take(some("A", 12), Cuts())
    merge.reached("A", 12)
    merge.reached("B", 12)
    assert placed(merge) == []
    merge.expect_only(())
    assert placed(merge) == [("A", [12], ())]


def test_a_merge_does_not_wait_for_a_finished_pubend_but_keeps_its_events_in_order() -> None:
    merge = Merge()
    merge.join("A", 0)
    merge.join("B", 0)
    merge.take(some("A", 5, 9), Cuts())
    merge.take(some("B", 3, 7), Cuts())
    merge.reached("A", 5)
    merge.reached("B", 7)
    assert placed(merge) == [("B", [3], ()), ("A", [5], ())]
    merge.lose("B", 8, 100)
    merge.reached("A", 9)
    assert placed(merge) == [("B", [7], ((8, 100),)), ("A", [9], ())]
    merge.take(some("A", 11), Cuts())
    merge.reached("A", 11)
    assert placed(merge) == [("A", [11], ())]


def test_a_pubend_that_comes_back_takes_part_above_what_was_released_meanwhile() -> None:
    merge = Merge()
    merge.join("A", 0)
    merge.join("B", 0)
    merge.take(some("A", 5), Cuts())
    merge.reached("A", 9)
    assert placed(merge) == []
    merge.finish("B")
    assert placed(merge) == [("A", [5], ())]
    merge.take(some("B", 4, 6), Cuts())
    merge.reached("B", 6)
    assert placed(merge) == [("B", [6], ((1, 4),))]


def test_late_events_of_a_pubend_that_was_given_up_are_lost() -> None:
    merge = Merge()
    merge.join("A", 0)
    merge.expect_only(["B"])
    merge.take(some("A", 5), Cuts())
    merge.reached("A", 9)
    merge.finish("B")
    assert placed(merge) == [("A", [5], ())]
    merge.expect_only(["B"])  # it is still awaited, but the merge goes on
    merge.take(some("A", 7), Cuts())
    assert placed(merge) == [("A", [7], ())]
    merge.join("B", 3)
    merge.take(some("B", 4, 8), Cuts())
    merge.reached("B", 9)
    assert placed(merge) == [("B", [8], ((4, 6),))]


def test_after_a_reconnect_the_cursors_tell_what_was_released() -> None:
    merge = Merge(5, "M")
    merge.join("M", 5)
    merge.join("A", 0)
    merge.take(some("A", 5, 6), Cuts())
    merge.reached("A", 9)
    merge.reached("M", 9)
    assert placed(merge) == [("A", [6], ())]


def test_a_merge_hands_out_what_it_held_back_in_pieces() -> None:
    merge = Merge()
    merge.join("A", 0)
    merge.take(some("A", *range(1, 3001)), Cuts())
    merge.reached("A", 3000)
    runs = merge.release()
    assert [tick for run in runs for tick in run.ticks] == list(range(1, 3001))
    assert max(len(run.ticks) for run in runs) <= 1024


def test_a_lost_range_is_merged_at_its_end() -> None:
    merge = Merge()
    merge.join("A", 0)
    merge.join("B", 0)
    merge.take(Delivered("A", 8, lost=((4, 8),)), Cuts())
    merge.take(some("A", 12), Cuts())
    merge.take(some("B", 3, 5, 10), Cuts())
    merge.reached("A", 12)
    merge.reached("B", 15)
    assert placed(merge) == [
        ("B", [3, 5], ()),
        ("A", [], ((4, 8),)),
        ("B", [10], ()),
        ("A", [12], ()),
    ]


# ── how long to wait ─────────────────────────────────────────────────────────────────────


def test_the_repetition_interval_follows_the_round_trips() -> None:
    liveness = Liveness(nack_repeat_s=0.6, nack_repeat_most_s=10.0)
    patience = Patience(liveness)
    assert patience.wait_s(1) == 0.6
    assert patience.wait_s(2) == pytest.approx(1.2)
    assert patience.wait_s(50) == 10.0
    for _ in range(50):
        patience.sample(2.0)
    assert 2.0 <= patience.wait_s(1) < 3.0
    for _ in range(100):
        patience.sample(0.01)
    assert patience.wait_s(1) == 0.6
