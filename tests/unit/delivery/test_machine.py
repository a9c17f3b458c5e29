"""The doors of the machine, one small situation each."""

from __future__ import annotations

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from motet.errors import MisuseError, ProtocolError
from motet.model.ids import LAST_TICK
from motet.protocol.delivery.messages import AckExpected, AckUp, DeliveryFrame, Knowledge, Nack
from motet.protocol.delivery.spans import CutRecord, Span, StartRecord
from motet.protocol.delivery.stream import (
    Curiosity,
    Effects,
    Limits,
    Liveness,
    ReadWanted,
    SilenceWanted,
    StartSeen,
)
from motet.protocol.delivery.subend import PATIENCE
from motet.protocol.routing.messages import Complete, Unsubscribe
from tests.unit.delivery.rig import (
    P,
    Rig,
    acks,
    delivered,
    event,
    expectations,
    given,
    knowledge,
    lost,
    nacks,
    op,
    span,
)

SMALL = Limits(memory_events=10, piece_events=4, window_events=6)


def edge(**more: Limits) -> Rig:
    return Rig({"t": ["c"], "u": ["d"]}, ["up"], "up", **more)  # type: ignore[arg-type]


# ── frames ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "frame",
    [
        Knowledge(P, Span(1, 9, [4], [event("t", 4)], (StartRecord(5, op("c")),)), True, True, 9),
        Knowledge(P, Span(1, 9, lost=True), True),
        Nack(P, ((1, 5), (9, 9)), 7),
        AckUp(P, 5),
        AckExpected(P, 1 << 53),
    ],
)
def test_frames_travel(frame: DeliveryFrame) -> None:
    decoded = msgpack.decode(msgpack.encode(frame), type=Knowledge | Nack | AckUp | AckExpected)
    assert msgpack.encode(decoded) == msgpack.encode(frame)


@pytest.mark.parametrize(
    "frame",
    [
        Knowledge(P, Span(5, 4)),
        Knowledge(P, Span(-1, 4)),
        Knowledge(P, Span(1, 4, [2], [])),
        Knowledge(P, Span(1, 4, [5], [event("t")])),
        Knowledge(P, Span(1, 4, [0], [event("t")])),
        Knowledge(P, Span(1, 9, [3, 3], [event("t"), event("t")])),
        Knowledge(P, Span(1, 9, [3], [event("t")], lost=True)),
        Knowledge(P, Span(1, 9, [], [], (StartRecord(10, op("c")),))),
        Knowledge(P, Span(1, 9, [3], [event("t")], (StartRecord(3, op("c")),))),
        Nack(P, ((5, 4),)),
        Nack(P, tuple((n, n) for n in range(0, 1000, 2))),
    ],
)
def test_an_invalid_frame_of_a_peer_is_a_protocol_error(frame: DeliveryFrame) -> None:
    rig = edge()
    with pytest.raises(ProtocolError):
        rig.receive("up", frame)
    rig.machine.validate()


def test_contradictory_knowledge_of_a_peer_is_a_protocol_error() -> None:
    rig = edge()
    rig.told(Span(1, 5, [3], [event("t", 1)]))
    with pytest.raises(ProtocolError, match="contradictory"):
        rig.told(Span(1, 5, [3], [event("t", 2)]), again=True)


def test_knowledge_of_neighbours_about_our_own_pubend_is_ignored() -> None:
    """A neighbour that does not know where a pubend is sends to all neighbours, including us."""
    rig = Rig({"t": ["n"]}, ["n"])
    rig.host()
    for frame in (Knowledge(P, Span(1, 5)), AckExpected(P, 5)):
        assert not rig.receive("n", frame).send


# ── the pubend's broker ──────────────────────────────────────────────────────────────────


def test_ticks_must_grow() -> None:
    rig = Rig({"t": ["n"]}, ["n"])
    rig.host(last=10)
    with pytest.raises(MisuseError, match="above 10"):
        rig.publish(10)
    with pytest.raises(MisuseError, match="not hosted"):
        rig.do(lambda m, o: m.published("Z", [1], [event("t")], o))


def test_a_batch_that_goes_one_way_is_passed_on_untouched() -> None:
    rig = Rig({"t": ["n", "m"]}, ["n", "m"])
    rig.host()
    batch = [event("t", 1), event("t", 2)]
    out = rig.do(lambda m, o: m.published(P, [1, 2], batch, o))
    frames = knowledge(out, "n") + knowledge(out, "m")
    assert all(frame.span.batch is batch for frame in frames)
    assert len(frames) == 2


def test_old_ticks_are_read_from_the_log_one_piece_at_a_time() -> None:
    # given a pubend that remembers only its newest ticks
    rig = Rig({"t": ["n"]}, ["n"], limits=SMALL)
    rig.host(last=100)
    rig.publish(110)
    # when a neighbour asks for all of them
    out = rig.receive("n", Nack(P, ((90, 110),)))
    # then what is remembered is told, the rest is read
    assert [f.span.ticks for f in knowledge(out, "n")] == [[110]]
    (want,) = out.reads
    assert want == ReadWanted(P, 90, 100, SMALL.piece_events, SMALL.piece_bytes)
    # and a piece that does not reach the end says so
    out = rig.do(lambda m, o: m.read_done(want, [span(90, 95, 91, 93, 94, 95)], o))
    (frame,) = knowledge(out, "n")
    assert frame.cut
    assert frame.span.ticks == [91, 93, 94, 95]
    # so that the rest can be asked for at once
    assert rig.receive("n", Nack(P, ((96, 100),))).reads[0].since == 96


def test_a_read_is_not_repeated_while_it_runs() -> None:
    rig = Rig({"t": ["n", "m"]}, ["n", "m"])
    rig.host(last=100)
    assert len(rig.receive("n", Nack(P, ((90, 100),))).reads) == 1
    assert rig.receive("m", Nack(P, ((90, 100),))).reads == []


def test_trimmed_ticks_are_answered_as_lost() -> None:
    rig = Rig({"t": ["n"]}, ["n"])
    rig.host(last=100)
    (want,) = rig.receive("n", Nack(P, ((1, 100),))).reads
    spans = [Span(1, 50, lost=True), span(51, 100, 60)]
    out = rig.do(lambda m, o: m.read_done(want, spans, o))
    assert [(f.span.since, f.span.upto, f.span.lost) for f in knowledge(out, "n")] == [
        (1, 50, True),
        (51, 100, False),
    ]


def test_future_ticks_are_answered_as_silence_when_the_clock_passes_them() -> None:
    rig = Rig({"t": ["n"]}, ["n"])
    rig.host(last=100)
    assert rig.receive("n", Nack(P, ((101, 150),))).silences == [SilenceWanted(P, 150)]
    out = rig.do(lambda m, o: m.advance(P, 130, o))
    assert [(f.span.since, f.span.upto) for f in knowledge(out, "n")] == [(101, 130)]
    with pytest.raises(MisuseError):
        rig.publish(130)


def test_after_a_restart_only_repeated_acknowledgements_count() -> None:
    rig = Rig({"t": ["n"]}, ["n"])
    out = rig.host(last=100)
    assert expectations(out) == [("n", 100)]
    assert rig.machine.acknowledged(P) == 0
    rig.receive("n", AckUp(P, 70))
    assert rig.machine.acknowledged(P) == 70


def test_without_subscribers_everything_is_acknowledged() -> None:
    rig = Rig({}, ["n"])
    rig.host(last=100)
    assert rig.machine.acknowledged(P) == 100


def test_a_destroyed_pubend_leaves_nothing() -> None:
    rig = edge()
    rig.join("c", 10)
    rig.told(span(20, 30, 25))
    rig.do(lambda m, o: m.destroyed(P, o))
    assert rig.timers == {}
    assert rig.wait(30) == []


# ── in between ───────────────────────────────────────────────────────────────────────────


def test_silence_travels_with_the_next_event() -> None:
    rig = Rig({"t": ["n"], "u": []}, ["up", "n"], "up")
    rig.told(span(1, 10, 10))
    assert knowledge(rig.told(span(11, 20, 15, topic="u")), "n") == []
    (frame,) = knowledge(rig.told(span(21, 30, 25)), "n")
    assert (frame.span.since, frame.span.upto) == (11, 30)


def test_silence_never_bridges_a_gap() -> None:
    rig = Rig({"t": ["n"], "u": []}, ["up", "n"], "up")
    rig.told(span(1, 10, 10))
    rig.told(span(11, 20, 15, topic="u"))
    rig.told(span(31, 40, 35, topic="u"))
    (frame,) = knowledge(rig.told(span(41, 50, 45)), "n")
    assert (frame.span.since, frame.span.upto) == (31, 50)


def test_a_neighbour_whose_interest_is_not_restored_gets_everything() -> None:
    rig = Rig({"t": []}, ["up", "n"], "up")
    rig.control(Complete(False), "n")
    assert [f.span.ticks for f in knowledge(rig.told(span(1, 9, 4)), "n")] == [[4]]
    out = rig.receive("n", Nack(P, ((1, 9),)))
    assert [f.span.ticks for f in knowledge(out, "n")] == [[4]]
    assert acks(*rig.wait(1)) == []


def test_start_records_follow_their_subscription() -> None:
    rig = Rig({"t": ["n"]}, ["up", "n", "m"], "up")
    rig.subscribe(op("far"), "m", "u")
    record = StartRecord(5, op("far"))
    out = rig.told(Span(1, 9, [4], [event("t")], (record,)))
    assert [(f.span.ticks, f.span.records) for f in knowledge(out, "n")] == [([4], ())]
    assert [(f.span.ticks, f.span.records) for f in knowledge(out, "m")] == [([], (record,))]
    assert out.started == [], "its client is not here"
    again = rig.receive("m", Nack(P, ((1, 9),)))
    assert [(f.span.ticks, f.span.records) for f in knowledge(again, "m")] == [([], (record,))]


def test_long_answers_are_cut() -> None:
    rig = Rig({"t": ["n"]}, ["up", "n"], "up", limits=SMALL)
    rig.told(span(1, 9, *range(1, 10)))
    (frame,) = knowledge(rig.receive("n", Nack(P, ((1, 9),))), "n")
    assert frame.span.ticks == [1, 2, 3, 4]
    assert frame.cut
    (frame,) = knowledge(rig.receive("n", Nack(P, ((5, 8),))), "n")
    assert frame.span.ticks == [5, 6, 7, 8]
    assert not frame.cut


def test_a_link_that_came_back_is_asked_for_what_it_missed() -> None:
    rig = Rig({"t": ["n"]}, ["up", "n"], "up")
    rig.told(span(1, 9, 4))
    assert expectations(rig.do(lambda m, o: m.linked("n", o))) == [("n", 9)]
    rig.receive("n", AckUp(P, 9))
    assert expectations(rig.do(lambda m, o: m.linked("n", o))) == []


def test_a_neighbour_that_is_gone_is_not_waited_for() -> None:
    rig = Rig({"t": ["n", "m"]}, ["up", "n", "m"], "up")
    rig.told(span(1, 9, 4))
    rig.receive("n", AckUp(P, 9))
    assert acks(*rig.wait(1)) == []
    rig.control(Unsubscribe(op("t@m")), "m")
    rig.do(lambda m, o: m.gone("m", o))
    assert acks(*rig.wait(1)) == [9]


def test_a_merge_does_not_wait_for_ever_for_a_start_at_a_pubend_without_a_path() -> None:
    rig = edge()
    rig.attach("c", total_order=True)
    rig.start("c", 3)
    rig.do(lambda m, o: m.clients.awaits("c", ["Q.1"], o))
    assert given(rig.told(span(4, 9, 6)), "c") == []
    rig.do(lambda m, o: m.unreachable("Q.1", o))
    assert not any(given(out, "c") for out in rig.wait(29))
    assert [tick for out in rig.wait(2) for tick in given(out, "c")] == [6]
    rig.do(lambda m, o: m.clients.awaits("c", ["Q.1"], o))
    assert given(rig.told(span(10, 12, 11)), "c") == [11]
    # nor does the merge of a client that connects only then
    rig.acked("c", 11)
    rig.do(lambda m, o: m.clients.attach("c", {P: 11}, o, ["Q.1"]))
    assert given(rig.told(span(13, 15, 14)), "c") == [14]


# ── at the edge ──────────────────────────────────────────────────────────────────────────


def test_nothing_is_delivered_before_the_start_is_known_and_nothing_below_it() -> None:
    rig = edge()
    rig.attach("c")
    assert given(rig.told(span(1, 20, 5, 15)), "c") == []
    out = rig.start("c", 10)
    assert out.started == [StartSeen(op("c"), P, 10)]
    assert given(out, "c") == [15]


def test_a_start_record_in_the_stream_starts() -> None:
    rig = edge()
    rig.attach("c")
    events = [event("t", tick) for tick in (5, 15)]
    out = rig.told(Span(1, 20, [5, 15], events, (StartRecord(10, op("c")),)))
    assert given(out, "c") == [15]
    assert out.started == [StartSeen(op("c"), P, 10)]
    assert rig.start("c", 10).started == []


def test_a_client_is_held_while_an_earlier_start_may_come() -> None:
    # given two subscriptions; the record of the first start was lost, the second one is known
    rig = edge()
    rig.subscribe(op("c", 2), "c")
    rig.attach("c")
    rig.told(span(12, 18, 15))
    out = rig.begin("c", 20, sequence=2)
    # then the pubend's broker is asked which subscriptions have started, and nothing is delivered
    assert [frame for _, frame in out.send] == [Nack(P, ())]
    assert given(rig.told(span(21, 30, 25)), "c") == []
    # when it answers
    out = rig.receive("up", AckExpected(P, 30, (StartRecord(11, op("c", 1)),)))
    # then each subscription gets what it is owed, in one order
    assert out.started == [StartSeen(op("c", 1), P, 11)]
    assert given(out, "c") == [15]
    out = rig.told(span(19, 20), again=True)
    (batch,) = delivered(out, "c")
    assert (batch.ticks, batch.every) == ([25], (1, 2))


def test_an_answer_that_does_not_suffice_yet_is_not_asked_for_again_at_once() -> None:
    """Control was faster than the log, which has not synced the start: it comes by itself."""
    rig = edge()
    rig.attach("c")
    assert [f for _, f in rig.begin("c", 20).send] == [Nack(P, ())]
    assert rig.receive("up", AckExpected(P, 15, ())).send == [("up", AckUp(P, 15))]
    assert [f for out in rig.wait(0.19) for _, f in out.send if isinstance(f, Nack)] == []
    # but soon, in case that it was lost
    assert [f for out in rig.wait(0.02) for _, f in out.send if isinstance(f, Nack)] == [
        Nack(P, ())
    ]
    rig.receive("up", AckExpected(P, 20, (StartRecord(20, op("c")),)))
    assert given(rig.told(span(21, 30, 25)), "c") == [25]


def test_a_thousand_held_clients_may_go_at_once() -> None:
    clients = [f"c{number}" for number in range(1000)]
    rig = Rig({"t": clients}, ["up"], "up")
    for client in clients:
        rig.machine.clients.attach(client, {}, rig.out)
        rig.machine.clients.start(op(client), P, 10, rig.out, several=True)
    assert not given(rig.told(span(11, 20, 15)), "c0")
    out = rig.receive("up", AckExpected(P, 20, ()))
    assert [given(out, client) for client in clients] == [[15]] * len(clients)


def test_contiguous_knowledge_needs_no_question_about_starts() -> None:
    rig = edge()
    rig.attach("c")
    rig.told(span(1, 20, 5))
    out = rig.told(Span(21, 30, [25], [event("t", 25)], (StartRecord(22, op("c")),)))
    assert given(out, "c") == [25]
    assert out.send == []


def test_a_question_about_starts_travels_up_once_and_is_repeated_ever_more_rarely() -> None:
    rig = Rig({"t": ["n", "m"]}, ["up", "n", "m"], "up")
    assert [f for _, f in rig.receive("n", Nack(P, ())).send] == [Nack(P, ())]
    assert rig.receive("m", Nack(P, ())).send == []
    # the answer goes to both, though one has acknowledged
    rig.receive("n", AckUp(P, 50))
    out = rig.receive("up", AckExpected(P, 50, ()))
    assert sorted(expectations(out)) == [("m", 50), ("n", 50)]
    # nobody answers an edge
    alone = edge()
    alone.attach("c")
    alone.begin("c", 20)
    asked = [f for out in alone.wait(60) for _, f in out.send]
    assert 5 <= len(asked) <= 12
    assert set(asked) == {Nack(P, ())}


def test_only_the_pubends_broker_can_say_which_subscriptions_have_started() -> None:
    rig = Rig({"t": ["n"]}, ["n", "m"])
    rig.host()
    rig.write_start(5, op("far"), "n")
    rig.write_start(6, op("other"), "m")
    out = rig.receive("n", Nack(P, ()))
    assert out.send[-1] == ("n", AckExpected(P, 6, (StartRecord(5, op("far")),)))


def test_subscriptions_that_all_match_are_named_once() -> None:
    rig = edge()
    rig.join("c", 10)
    (batch,) = delivered(rig.told(span(11, 20, 12, 15)), "c")
    assert (batch.every, batch.each, batch.upto) == ((1,), [], 20)


def test_a_client_that_does_not_acknowledge_waits_while_others_continue() -> None:
    rig = Rig({"t": ["c", "d"]}, ["up"], "up", limits=SMALL)
    rig.join("c", 10)
    rig.join("d", 10)
    got: dict[str, list[int]] = {"c": [], "d": []}
    for tick in range(11, 41):
        out = rig.told(span(tick, tick, tick))
        for client in got:
            got[client] += given(out, client)
        got["d"] += given(rig.acked("d", tick), "d")
    assert got["d"] == list(range(11, 41))
    assert got["c"] == list(range(11, 11 + SMALL.window_events))
    # when it reads again, what is forgotten is asked for, for it alone
    out = rig.acked("c", 16)
    ((low, last),) = nacks(out)
    assert low == 17
    for _ in range(40):
        for low, high in nacks(out):
            high = min(high, low + SMALL.piece_events - 1)
            out = rig.told(span(low, high, *range(low, high + 1)), again=True, cut=high < last)
            assert given(out, "d") == []
            got["c"] += given(out, "c")
        out = rig.acked("c", got["c"][-1])
        got["c"] += given(out, "c")
    assert got["c"] == list(range(11, 41))


def test_events_for_a_slow_client_are_not_requested_one_by_one() -> None:
    rig = edge(limits=SMALL)
    rig.join("c", 10)
    for tick in range(11, 101):
        rig.told(span(tick, tick, tick))
    asked = [nacks(rig.acked("c", tick)) for tick in range(11, 17)]
    assert len([each for each in asked if each]) == 1


def test_a_returning_client_continues_after_its_cursor() -> None:
    rig = edge()
    rig.join("c", 10)
    assert given(rig.told(span(11, 20, 12, 15, 18)), "c") == [12, 15, 18]
    rig.acked("c", 12)
    rig.do(lambda m, o: m.clients.detach("c", o))
    assert given(rig.told(span(21, 30, 25)), "c") == []
    assert given(rig.attach("c", cursor=15), "c") == [18, 25]
    # what the broker knows is a lower bound
    rig.acked("c", 30)
    rig.do(lambda m, o: m.clients.detach("c", o))
    assert given(rig.attach("c", cursor=12), "c") == []


def test_a_client_with_a_higher_cursor_than_others_gets_nothing_twice() -> None:
    rig = Rig({"t": ["c", "d"]}, ["up"], "up")
    for client in "cd":
        rig.start(client, 10)
    rig.attach("c", cursor=12)
    rig.attach("d", cursor=20)
    out = rig.told(span(13, 30, 15, 18, 25))
    assert given(out, "c") == [15, 18, 25]
    assert given(out, "d") == [25]


def test_lost_ranges_reach_the_client_in_order() -> None:
    rig = edge()
    rig.join("c", 10)
    rig.told(span(31, 40, 35))
    rig.told(Span(11, 20, lost=True), again=True)
    out = rig.told(span(21, 30, 25), again=True)
    assert [(each.ticks, each.lost) for each in delivered(out, "c")] == [([25], ()), ([35], ())]
    rig.do(lambda m, o: m.clients.detach("c", o))
    out = rig.attach("c", cursor=15)
    assert lost(out, "c") == [(16, 20)]


def test_an_edge_acknowledges_processed_and_unwanted_events() -> None:
    rig = Rig({"t": ["c"], "u": ["d"]}, ["up"], "up")
    rig.join("c", 10)
    rig.join("d", 10)
    rig.told(span(11, 20, 15))
    rig.told(span(21, 30, 25, topic="u"))
    rig.acked("d", 25)
    outs = rig.wait(1)
    assert acks(*outs) == [14]
    assert [each.upto for out in outs for each in out.floors] == [14]
    rig.acked("c", 15)
    assert acks(*rig.wait(1)) == [30]


def test_absent_clients_hold_acknowledgements_back() -> None:
    rig = edge()
    rig.start("c", 10)
    rig.told(span(11, 20, 15))
    assert acks(rig.receive("up", AckExpected(P, 20))) == [10]


def test_an_edge_without_clients_acknowledges_only_if_it_is_sure_that_none_has_started() -> None:
    rig = edge()
    assert acks(rig.receive("up", AckExpected(P, 50))) == []
    assert acks(rig.receive("up", AckExpected(P, 50, ()))) == [50]


def test_ticks_below_a_start_that_was_not_seen_are_not_acknowledged_for_others() -> None:
    # given a client at 100; the start of another one at 60 was lost on the way
    rig = Rig({"t": ["c", "d"]}, ["up"], "up")
    rig.start("c", 10)
    rig.attach("c", cursor=100)
    rig.told(span(101, 110, 105))
    rig.acked("c", 110)
    # then nothing above what is sure is acknowledged
    assert acks(*rig.wait(1)) == []
    # until the pubend's broker has told of it
    out = rig.receive("up", AckExpected(P, 110, (StartRecord(60, op("d")),)))
    assert acks(out) == [60]


def test_the_last_subscription_that_ends_frees_the_acknowledgement() -> None:
    rig = edge()
    rig.join("c", 10)
    rig.told(span(11, 20, 15))
    rig.do(lambda m, o: m.clients.end(op("c"), o))
    assert given(rig.told(span(21, 30, 25)), "c") == []
    assert acks(*rig.wait(1)) == [30]


def test_a_floor_spares_silence_that_the_pubend_has_forgotten() -> None:
    rig = edge()
    rig.machine.restore(P, 500)
    rig.start("c", 10)
    rig.receive("up", AckExpected(P, 600))
    assert nacks(rig.attach("c", cursor=20)) == [(501, 600)]


# ── into the past ────────────────────────────────────────────────────────────────────────


def test_past_events_of_a_subscription_come_only_from_the_log() -> None:
    # given an edge that knows ticks as filtered before the subscription began
    rig = edge()
    rig.told(span(1, 100))
    rig.attach("c")
    # when the subscription begins at 100 and wants everything above 40
    out = rig.start_above(40, op("c"), 100)
    # then it asks for the pubend's own word
    frames = [frame for _, frame in out.send if isinstance(frame, Nack)]
    assert frames == [Nack(P, ((41, 100),), 100)]
    # and takes no other
    assert given(rig.told(span(41, 100, 50), again=True), "c") == []
    early = Knowledge(P, span(41, 100, 50), True, False, 99)
    assert given(rig.receive("up", early), "c") == []
    answer = Knowledge(P, span(41, 100, 50, 70), True, False, 120)
    assert given(rig.receive("up", answer), "c") == [50, 70]
    # and joins the live stream
    assert given(rig.told(span(101, 110, 105)), "c") == [105]


def test_intermediates_pass_questions_into_the_past_on_and_never_answer_them() -> None:
    rig = Rig({"t": ["n", "m"]}, ["up", "n", "m"], "up")
    rig.told(span(1, 50))
    out = rig.receive("n", Nack(P, ((1, 50),), 60))
    assert knowledge(out, "n") == []
    assert [frame for _, frame in out.send] == [Nack(P, ((1, 50),), 60)]
    out = rig.receive("up", Knowledge(P, span(1, 30, 20), True, True, 70))
    assert [(f.span.ticks, f.cut, f.asof) for f in knowledge(out, "n")] == [([20], True, 70)]
    assert knowledge(out, "m") == []


def test_past_events_that_can_no_longer_be_read_are_lost_for_an_absent_client_too() -> None:
    # given a client that is away, or not, while it reads the past
    for away in (False, True):
        rig = edge()
        rig.receive("up", AckExpected(P, 100, ()))
        rig.attach("c")
        rig.start_above(40, op("c"), 100)
        told = Knowledge(P, span(41, 60, 50), True, True, 120)
        assert given(rig.receive("up", told), "c") == [50]
        rig.acked("c", 50)
        if away:
            rig.do(lambda m, o: m.clients.detach("c", o))
        # when the advertisement takes its start with it
        out = rig.do(lambda m, o: m.clients.lift(op("c"), P, 150, o))
        if away:
            assert lost(out, "c") == []
            out = rig.attach("c")
        # then it is told, until it has heard so
        assert lost(out, "c") == [(61, 100)]
        rig.do(lambda m, o: m.clients.detach("c", o))
        assert lost(rig.attach("c"), "c") == [(61, 100)]
        rig.acked("c", 100)
        rig.do(lambda m, o: m.clients.detach("c", o))
        assert lost(rig.attach("c"), "c") == []
        assert given(rig.told(span(151, 160, 155)), "c") == [155]


def test_past_events_without_an_advertiser_are_lost_for_a_client_that_got_none_yet() -> None:
    # given a client that waits, because another of its subscriptions may have started before
    rig = edge()
    rig.attach("c")
    rig.start_above(40, op("c"), 100)
    # when nobody advertises there any more, and nothing was published behind its start
    rig.do(lambda m, o: m.clients.lift(op("c"), P, 100, o, over=True))
    # then it is told, until it has heard so
    out = rig.receive("up", AckExpected(P, 100, ()))
    assert lost(out, "c") == [(41, 100)]
    rig.do(lambda m, o: m.clients.detach("c", o))
    assert lost(rig.attach("c"), "c") == [(41, 100)]
    rig.acked("c", 100)
    rig.do(lambda m, o: m.clients.detach("c", o))
    assert lost(rig.attach("c"), "c") == []


def test_a_second_subscription_does_not_reach_back_into_a_lost_past() -> None:
    # given a client that was given nothing yet, and will be told that a past is lost
    rig = edge()
    rig.subscribe(op("c", 2), "c")
    rig.attach("c")
    rig.start_above(40, op("c"), 100)
    rig.do(lambda m, o: m.clients.lift(op("c"), P, 100, o, over=True))
    # when another of its subscriptions wants that past, too
    rig.start_above(40, op("c", 2), 110)
    out = rig.receive("up", AckExpected(P, 110, (StartRecord(110, op("c", 2)),)))
    # then the loss is told, nothing before its end is asked for, and both go on above it
    assert lost(out, "c") == [(41, 100)]
    assert nacks(out) == [(101, 110)]
    rig.acked("c", 100)
    assert [(each.ticks, each.each) for _, each in rig.told(span(101, 120, 105, 115)).deliver] == [
        ([105, 115], [(1,), (1, 2)])
    ]


def test_past_events_of_a_removed_subscription_are_not_lost() -> None:
    # given a client that reads the past for one of its two subscriptions
    rig = edge()
    rig.subscribe(op("c", 2), "c")
    rig.receive("up", AckExpected(P, 100, ()))
    rig.attach("c")
    rig.start_above(40, op("c"), 100)
    assert given(rig.receive("up", Knowledge(P, span(41, 60, 50), True, True, 120)), "c") == [50]
    rig.begin("c", 110, 2)
    # when it takes that one back, and then the advertisement of the other one goes
    rig.do(lambda m, o: m.clients.end(op("c"), o))
    out = rig.do(lambda m, o: m.clients.lift(op("c", 2), P, 150, o))
    # then it is told of no loss, and goes on
    assert lost(out, "c") == []
    assert given(rig.told(span(101, 160, 105, 120, 155)), "c") == [155]


@pytest.mark.parametrize("start", [70, 90, 99, 100])
def test_what_follows_the_start_of_another_subscription_is_no_lost_past(start: int) -> None:
    # given a client that reads the past for one subscription, while another one has started in it
    rig = edge()
    rig.subscribe(op("c", 2), "c")
    rig.receive("up", AckExpected(P, 100, ()))
    rig.attach("c")
    rig.start_above(40, op("c"), 100)
    assert given(rig.receive("up", Knowledge(P, span(41, 60, 50), True, True, 120)), "c") == [50]
    rig.begin("c", start, 2)
    # when it takes the first one back, and the other one is owed nothing up to 150
    rig.do(lambda m, o: m.clients.end(op("c"), o))
    out = rig.do(lambda m, o: m.clients.lift(op("c", 2), P, 150, o))
    assert lost(out, "c") == []


def test_a_lost_past_ends_where_the_last_subscription_that_wants_it_has_started() -> None:
    rig = edge()
    rig.subscribe(op("c", 2), "c")
    rig.receive("up", AckExpected(P, 100, ()))
    rig.start_above(40, op("c"), 100)
    rig.start_above(50, op("c", 2), 80)
    rig.attach("c")
    assert given(rig.receive("up", Knowledge(P, span(41, 60, 45), True, True, 120)), "c") == [45]
    rig.do(lambda m, o: m.clients.end(op("c"), o))
    out = rig.do(lambda m, o: m.clients.lift(op("c", 2), P, 150, o))
    assert lost(out, "c") == [(61, 80)]


def test_a_subscription_started_again_reads_past_events_up_to_its_new_start() -> None:
    # given a client that reads the past
    rig = edge()
    rig.receive("up", AckExpected(P, 100, ()))
    rig.attach("c")
    rig.start_above(40, op("c"), 100)
    assert given(rig.receive("up", Knowledge(P, span(41, 60, 50), True, True, 120)), "c") == [50]
    # when the start was void, and a later one counts
    rig.do(lambda m, o: m.clients.start(op("c"), P, 150, o))
    out = rig.do(lambda m, o: m.clients.lift(op("c"), P, 150, o, anew=True))
    # then nothing is lost, and what it reads must be as of there
    assert lost(out, "c") == []
    assert [f.asof for _, f in out.send if isinstance(f, Nack)] == [150]
    assert given(rig.receive("up", Knowledge(P, span(61, 150, 130), True, False, 140)), "c") == []
    assert given(rig.receive("up", Knowledge(P, span(61, 150, 130), True, False, 160)), "c") == [
        130
    ]


def test_the_past_is_asked_for_from_its_beginning_only() -> None:
    # given a client that waits for the beginning of what it asked for
    rig = Rig({"t": ["c", "n"]}, ["up", "n"], "up")
    rig.start("c", 100)
    rig.attach("c")
    rig.do(lambda m, o: m.clients.start(op("c", 2), P, 100, o))
    assert nacks(rig.receive("n", Nack(P, ((1, 90),), 100))) == [(1, 90)]
    # when the rest is open again, because an answer to somebody else was cut
    rig.receive("up", Knowledge(P, span(50, 60, 55), True, True, 110))
    # then nobody asks for the rest before its turn
    assert nacks(rig.receive("n", Nack(P, ((1, 90),), 100))) == []
    assert nacks(rig.receive("n", Nack(P, ((61, 90),), 100))) == [(61, 90)]


def test_a_client_that_reads_live_events_does_not_go_back() -> None:
    rig = edge()
    rig.join("c", 10)
    rig.told(span(11, 100, 50))
    out = rig.start_above(40, op("c", 2), 100)
    assert nacks(out) == []
    assert rig.machine.clients.begun("c") == {P: 10}


def test_a_subscription_does_not_reach_back_behind_what_its_client_has_read() -> None:
    # given a client that has read under one subscription, which is over
    rig = edge()
    rig.subscribe(op("c", 2), "c")
    rig.join("c", 10)
    assert given(rig.told(span(11, 100, 50)), "c") == [50]
    rig.acked("c", 100)
    rig.do(lambda m, o: m.clients.end(op("c"), o))
    # when another one starts there only then, and wants everything above 5
    rig.receive("up", AckExpected(P, 120, ()))
    out = rig.start_above(5, op("c", 2), 120)
    # then it gets what the client has not read, because the client would ignore the rest
    assert [f for _, f in out.send if isinstance(f, Nack)] == [Nack(P, ((101, 120),), 120)]
    early = Knowledge(P, Span(1, 90, lost=True), True, False, 120)
    assert lost(rig.receive("up", early), "c") == []
    answer = Knowledge(P, span(101, 120, 110), True, False, 120)
    assert given(rig.receive("up", answer), "c") == [110]
    # and nothing waits for an acknowledgement that never comes
    rig.acked("c", 110)
    rig.told(span(121, 130))
    more = rig.receive("up", AckExpected(P, 130, ()))
    assert acks(*rig.wait(1), more) == [130]


def test_what_was_lost_before_a_client_had_read_on_is_not_told_again() -> None:
    # given a client that has read, and waits for the past of its next subscription
    rig = edge()
    rig.subscribe(op("c", 2), "c")
    rig.join("c", 10)
    rig.told(span(11, 100, 50))
    rig.acked("c", 50)
    rig.do(lambda m, o: m.clients.end(op("c"), o))
    rig.start_above(5, op("c", 2), 90)
    # when nobody advertises there any more
    rig.do(lambda m, o: m.clients.lift(op("c", 2), P, 90, o, over=True))
    out = rig.receive("up", AckExpected(P, 100, ()))
    # then it is told nothing that it would ignore
    assert lost(out, "c") == []
    assert acks(out, *rig.wait(1)) == [100]


def test_a_held_client_may_reach_back_with_several_subscriptions() -> None:
    # given a client that says that it is not ready
    rig = edge()
    rig.subscribe(op("c", 2), "c")
    rig.do(lambda m, o: m.clients.attach("c", {}, o, hold=True))
    rig.receive("up", AckExpected(P, 100, ()))
    # when two of its subscriptions begin
    rig.start_above(40, op("c", 1), 90)
    out = rig.start_above(20, op("c", 2), 100)
    # then nothing is asked for before it is ready
    assert nacks(out) == []
    assert rig.machine.clients.begun("c") == {}
    out = rig.do(lambda m, o: m.clients.ready("c", o))
    assert [f for _, f in out.send if isinstance(f, Nack)] == [Nack(P, ((21, 100),), 100)]
    answer = Knowledge(P, span(21, 100, 30, 50), True, False, 120)
    assert [
        (each.ticks, each.every or each.each) for _, each in rig.receive("up", answer).deliver
    ] == [([30, 50], [(2,), (1, 2)])]


def test_an_unknown_start_delays_a_client_that_reaches_back_past_it() -> None:
    rig = edge()
    rig.attach("c")
    out = rig.start_above(40, op("c", 2), 100)
    assert nacks(out) == []
    assert nacks(rig.receive("up", AckExpected(P, 100, (StartRecord(30, op("c", 1)),))))[0][0] == 31


def test_a_tentative_start_does_not_stop_another_one_from_reaching_back() -> None:
    # given a client that reads, but only for a transaction that is not decided
    rig = edge()
    rig.subscribe(op("c", 2), "c")
    rig.attach("c")
    rig.receive("up", AckExpected(P, 90, ()))
    rig.do(lambda m, o: m.clients.start(op("c", 1), P, 90, o, tentative=True))
    assert given(rig.told(span(91, 100, 95)), "c") == []
    # when it subscribes to what is older
    rig.receive("up", AckExpected(P, 100, ()))
    out = rig.start_above(40, op("c", 2), 100)
    # then it gets that
    assert [f for _, f in out.send if isinstance(f, Nack)] == [Nack(P, ((41, 100),), 100)]
    answer = Knowledge(P, span(41, 100, 50, 95), True, False, 100)
    told = [(each.ticks, each.every) for _, each in rig.receive("up", answer).deliver]
    assert told == [([50, 95], (2,))]
    # and who has got something does not go back
    assert nacks(rig.start_above(20, op("c", 3), 110)) == []


def test_a_position_that_gave_nothing_does_not_stop_a_later_one_from_reaching_back() -> None:
    # given a client that has read only for a transaction that was aborted
    rig = edge()
    rig.subscribe(op("c", 2), "c")
    rig.attach("c")
    rig.receive("up", AckExpected(P, 90, ()))
    rig.do(lambda m, o: m.clients.start(op("c", 1), P, 90, o, tentative=True))
    assert given(rig.told(span(91, 100, 95)), "c") == []
    rig.do(lambda m, o: m.clients.end(op("c", 1), o))
    assert rig.machine.clients.begun("c") == {}
    # when a subscription starts there that wants what is older
    rig.receive("up", AckExpected(P, 100, ()))
    out = rig.start_above(40, op("c", 2), 100)
    # then it gets that
    assert [f for _, f in out.send if isinstance(f, Nack)] == [Nack(P, ((41, 100),), 100)]


@pytest.mark.parametrize(("end", "again"), [(10, [(1, 10)]), (LAST_TICK, [(1, 10), (21, 30)])])
def test_an_answer_that_was_cut_is_continued_as_far_as_its_request_went(
    end: int, again: list[tuple[int, int]]
) -> None:
    """A neighbour answers all ranges together, and the log each one apart."""
    curiosity = Curiosity(Liveness())
    curiosity.sync([], [(1, 10), (21, 30)], 0.0)
    assert curiosity.due(0.0) == [(1, 10), (21, 30)]
    curiosity.go_on(1, 3, 0.0, end)
    assert curiosity.due(0.0) == again


def test_ticks_requested_again_are_no_longer_acknowledged() -> None:
    rig = Rig({"t": ["n"]}, ["n"])
    rig.host()
    rig.publish(10, 20, 30)
    rig.receive("n", AckUp(P, 30))
    assert rig.machine.acknowledged(P) == 30
    rig.receive("n", Nack(P, ((15, 30),), 30))
    assert rig.machine.acknowledged(P) == 14
    rig.receive("n", AckUp(P, 30))
    assert rig.machine.acknowledged(P) == 30


# ── durable clients ──────────────────────────────────────────────────────────────────────


def test_after_a_restart_a_durable_client_goes_on_where_it_was() -> None:
    rig = edge()
    rig.machine.restore(P, 50)
    rig.machine.clients.recall("c", {P: 70}, durable=True)
    rig.start("c", 10)
    assert acks(*rig.wait(1), rig.receive("up", AckExpected(P, 100, ()))) == [70]
    assert nacks(rig.attach("c")) == [(71, 100)]


def test_the_position_of_a_durable_client_is_made_durable_if_others_are_behind() -> None:
    rig = Rig({"t": ["c", "d"]}, ["up"], "up")
    for client, durable in (("c", True), ("d", False)):
        rig.do(lambda m, o, c=client, d=durable: m.clients.attach(c, {}, o, durable=d))
        rig.start(client, 10)
    rig.told(span(11, 30, 20))
    rig.acked("c", 20)
    (floor,) = [each for out in rig.wait(1) for each in out.floors]
    assert (floor.upto, floor.cursors) == (19, {"c": 30})
    rig.told(span(31, 50, 40))
    rig.acked("c", 40)
    (floor,) = [each for out in rig.wait(1) for each in out.floors]
    # The floor has not risen: it says nothing of clients that have moved here since it was noted.
    assert (floor.upto, floor.cursors) == (0, {"c": 50})
    rig.acked("d", 40)
    (floor,) = [each for out in rig.wait(1) for each in out.floors]
    assert (floor.upto, floor.cursors) == (50, {})


def test_a_position_of_a_durable_client_counts_when_it_has_been_given_something() -> None:
    # given a durable client that reads only for a transaction, and another client that is behind
    rig = Rig({"t": ["c", "d"]}, ["up"], "up")
    for client, durable in (("c", True), ("d", False)):
        rig.do(lambda m, o, c=client, d=durable: m.clients.attach(c, {}, o, durable=d))
    rig.start("d", 10)
    rig.do(lambda m, o: m.clients.start(op("c"), P, 10, o, tentative=True))
    # when events pass by, then a restart may let it begin further back than these
    assert given(rig.told(span(11, 30, 20)), "c") == []
    assert [floor.cursors for out in rig.wait(1) for floor in out.floors] == [{}]
    assert rig.machine.clients.begun("c") == {}
    # and when the transaction has begun its subscription, what it acknowledges counts
    rig.do(lambda m, o: m.clients.switch(op("c"), P, 30, False, o))
    assert given(rig.told(span(31, 50, 40)), "c") == [40]
    rig.acked("c", 40)
    assert [floor.cursors for out in rig.wait(1) for floor in out.floors] == [{"c": 50}]
    rig.do(lambda m, o: m.clients.detach("c", o))
    assert rig.machine.clients.begun("c") == {P: 50}


def test_one_subscription_may_be_further_than_its_client() -> None:
    rig = edge()
    rig.subscribe(op("c", 2), "c")
    rig.join("c", 10)
    rig.begin("c", 10, 2)
    rig.machine.clients.done("c", 2, P, 25)
    deliver = rig.told(span(11, 30, 20, 30)).deliver
    assert [(each.ticks, each.each) for _, each in deliver] == [([20, 30], [(1,), (1, 2)])]


def test_a_repeated_partial_answer_is_continued_once() -> None:
    # given a client that is behind, and somebody below who reads the past
    rig = Rig({"t": ["c", "n"]}, ["up", "n"], "up")
    rig.start("c", 100)
    rig.attach("c")
    rig.receive("up", AckExpected(P, 200, ()))
    assert nacks(rig.receive("n", Nack(P, ((1, 90),), 100))) == [(1, 90)]
    first = Knowledge(P, span(101, 120, 110), True, True, 200)
    past = Knowledge(P, span(1, 30, 20), True, True, 200)
    # when answers are cut, then only what they begin is asked for on
    assert nacks(rig.receive("up", first)) == [(121, 200)]
    assert nacks(rig.receive("up", past)) == []
    assert nacks(rig.receive("n", Nack(P, ((31, 90),), 100))) == [(31, 90)]
    # and the same answers again cause no further questions
    for again in (first, past, first, past):
        assert nacks(rig.receive("up", again)) == []
        assert nacks(rig.receive("n", Nack(P, ((31, 90),), 100))) == []


def started_once_more() -> Rig:
    """The stream has overtaken control, which is to tell what became of the start at 100."""
    rig = edge()
    rig.start("c", 100)
    rig.attach("c")
    rig.told(span(101, 120, 110))
    rig.acked("c", 110)
    rig.receive("up", AckExpected(P, 200, (StartRecord(190, op("c")),)))
    return rig


def test_a_loss_between_two_starts_is_reported_only_if_the_first_has_not_ended() -> None:
    rig = started_once_more()
    # when the pubend has forgotten what lies between, then nobody is told at once
    assert lost(rig.told(Span(121, 150, lost=True), again=True), "c") == []
    assert lost(rig.told(span(151, 200, 195), again=True), "c") == []
    # and if the first start is over, nothing was lost
    out = rig.do(lambda m, o: m.clients.lift(op("c"), P, 120, o, over=True))
    assert lost(out, "c") == []
    assert given(out, "c") == [195]


def test_a_loss_is_reported_after_a_while_if_control_messages_say_nothing() -> None:
    rig = started_once_more()
    rig.told(Span(121, 200, lost=True), again=True)
    told: list[tuple[int, int]] = []
    for _ in range(PATIENCE + 1):
        assert told == []
        told = lost(rig.receive("up", AckExpected(P, 200, (StartRecord(190, op("c")),))), "c")
    assert told == [(121, 200)]


def begun_by_a_cut() -> Rig:
    """A subscription that a transaction has begun above 100."""
    rig = edge()
    rig.attach("c")
    rig.receive("up", AckExpected(P, 90, ()))
    rig.do(lambda m, o: m.clients.start(op("c"), P, 90, o, tentative=True))
    rig.do(lambda m, o: m.clients.switch(op("c"), P, 100, False, o))
    assert given(rig.told(span(91, 120, 95, 110)), "c") == [110]
    return rig


def test_a_subscription_shown_as_tentative_again_has_ended_at_that_pubend() -> None:
    """No client advertised there when a transaction ended it, so the stream has no cut."""
    rig = begun_by_a_cut()
    again = (StartRecord(130, op("c"), tentative=True),)
    out = rig.told(replace(span(121, 160, 125, 150), records=again))
    assert given(out, "c") == [125]
    assert [(each.tick, each.ended) for each in out.switched] == [(130, True)]


def test_the_start_that_began_it_shown_again_ends_nothing() -> None:
    rig = begun_by_a_cut()
    rig.receive("up", AckExpected(P, 120, (StartRecord(90, op("c"), tentative=True),)))
    assert given(rig.told(span(121, 130, 125)), "c") == [125]


def test_a_subscription_begins_at_a_cut_that_arrives_before_its_start() -> None:
    rig = edge()
    rig.attach("c")
    rig.receive("up", AckExpected(P, 100, ()))
    cut = CutRecord(100, "c/e/9", ((op("c"), 100, False),), (P,), 100, 1)
    out = rig.told(replace(span(91, 120, 95, 110), records=(cut,)))
    assert given(out, "c") == [110]
    assert [(each.op, each.tick, each.tentative) for each in out.started] == [(op("c"), 100, False)]


def test_a_subscription_that_is_over_at_a_pubend_misses_nothing_there() -> None:
    # given a client whose advertiser goes
    rig = edge()
    rig.start("c", 100)
    rig.attach("c")
    rig.told(span(101, 120, 110))
    rig.acked("c", 120)
    rig.do(lambda m, o: m.clients.lift(op("c"), P, 130, o, over=True))
    # when the pubend goes on, and forgets
    out = rig.receive("up", AckExpected(P, 200, ()))
    # then nothing is asked for, and no loss is told
    assert nacks(out) == []
    assert lost(rig.receive("up", Knowledge(P, Span(131, 200, lost=True), True)), "c") == []
    # and it goes on where it starts again
    rig.start("c", 210)
    assert given(rig.told(span(201, 230, 205, 220)), "c") == [220]
    assert rig.machine.clients.begun("c")[P] >= 130


def test_events_received_before_a_resume_are_not_yet_acknowledged() -> None:
    # given a durable client that has an event, and is not done with it
    rig = edge()
    rig.start("c", 100)
    rig.do(lambda m, o: m.clients.attach("c", {}, o, durable=True))
    rig.receive("up", AckExpected(P, 100, ()))
    assert given(rig.told(span(101, 110, 105)), "c") == [105]
    # when its connection breaks, and it comes back with what it has
    rig.do(lambda m, o: m.clients.detach("c", o))
    out = rig.do(lambda m, o: m.clients.attach("c", {P: 110}, o, durable=True, resumes=True))
    assert given(out, "c") == []
    # then, should it end now, the next process gets the event
    rig.do(lambda m, o: m.clients.detach("c", o))
    assert rig.machine.clients.begun("c") == {P: 104}
    # but not once it is done
    rig.do(lambda m, o: m.clients.attach("c", {P: 110}, o, durable=True, resumes=True))
    rig.acked("c", 110)
    rig.do(lambda m, o: m.clients.detach("c", o))
    assert rig.machine.clients.begun("c") == {P: 110}


# ── clients that have moved ──────────────────────────────────────────────────────────────


def arrive(rig: Rig, client: str, level: int, doubt: int) -> Effects:
    """A client has moved here: it has acknowledged `level`, and may have been passed by up to
    `doubt`."""
    rig.machine.clients.doubt = lambda *_: doubt
    rig.machine.clients.recall(client, {P: level})
    rig.begin(client, 1)
    return rig.attach(client)


def test_a_client_that_moves_to_the_broker_of_a_log_gets_what_is_in_memory() -> None:
    """The log itself may keep less, and is not read."""
    rig = Rig({"t": ["c"]}, ["n"])
    rig.host()
    rig.publish(10, 20, 30)
    out = arrive(rig, "c", 10, doubt=30)
    assert given(out, "c") == [20, 30]
    assert out.reads == []


def test_there_only_what_is_not_in_memory_is_read() -> None:
    rig = Rig({"t": ["c"]}, ["n"])
    rig.host(15)
    rig.publish(20, 30)
    out = arrive(rig, "c", 10, doubt=30)
    assert not given(out, "c")
    (want,) = out.reads
    assert (want.since, want.upto) == (11, 15)
    out = rig.do(lambda m, o: m.read_done(want, [span(11, 15, 12)], o))
    assert given(out, "c") == [12, 20, 30]


def test_elsewhere_it_is_read_as_brokers_may_have_told_silence_to_others() -> None:
    rig = edge()
    rig.told(Span(1, 30))
    out = arrive(rig, "c", 10, doubt=30)
    assert not given(out, "c")
    assert nacks(out) == [(11, 30)]
