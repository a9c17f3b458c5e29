"""Exactly-once delivery in a content-based publish-subscribe system, claim by claim.

And where we do otherwise than printed, what we do instead.
"""

from __future__ import annotations

from itertools import pairwise

from motet.protocol.delivery.messages import AckExpected, AckUp, Knowledge, Nack
from motet.protocol.delivery.spans import Span
from motet.protocol.delivery.stream import Liveness
from tests.unit.delivery.rig import (
    P,
    Rig,
    acks,
    expectations,
    given,
    knowledge,
    nacks,
    span,
)
from tests.unit.delivery.world import World

PAPER = Liveness(gap_s=0.2, nack_repeat_s=0.6, ack_expected_s=10.0)
"""GCT, NRT, AET of section 4.2; DCT is infinite."""

PAPER_TREE = {
    "p1": ["b1", "b3"],
    "b1": ["p1", "s1", "s2"],
    "b3": ["p1", "s3", "s4", "s5"],
    "s1": ["b1"],
    "s2": ["b1"],
    "s3": ["b3"],
    "s4": ["b3"],
    "s5": ["b3"],
}
"""Figure 3 with one broker per cell."""


def paper_world(**more: float) -> World:
    clients = {f"c{n}": f"s{n}" for n in range(1, 6)}
    world = World(PAPER_TREE, {P: "p1"}, clients, liveness=PAPER, **more)  # type: ignore[arg-type]
    for client in clients:
        world.connect(client)
        world.subscribe(client, range(world.topics), 1)
    world.run(3.0)
    return world


def publish_for(world: World, seconds: float) -> None:
    """25 messages per second."""
    for _ in range(int(seconds * 25)):
        world.publish(P)
        world.run(0.04)


# ── 2: the model ─────────────────────────────────────────────────────────────────────────


def test_2_1_knowledge_accumulates_to_the_least_upper_bound() -> None:
    # given an edge that knows some ticks and not others
    rig = Rig({"t": ["c"]}, ["up"], "up")
    rig.join("c", 10)
    rig.told(span(11, 14, 12))
    # when it is told some of them again together with new ones
    out = rig.told(span(11, 16, 12, 15))
    # then only the new ones are news
    assert given(out, "c") == [15]
    assert given(rig.told(span(11, 16, 12, 15)), "c") == []


def test_2_1_any_stream_except_the_pubend_can_forget() -> None:
    # given a subscriber behind an intermediate broker
    world = paper_world()
    publish_for(world, 1.0)
    # when every broker but the pubend's forgets everything, in the middle of the stream
    for broker in ("b1", "b3", "s1", "s2"):
        world.crash(broker)
    publish_for(world, 0.5)
    for broker in ("b1", "b3", "s1", "s2"):
        world.boot(broker)
    for client in ("c1", "c2"):
        world.connect(client)
    publish_for(world, 0.5)
    # then all of it arrives, once and in order
    world.settle()
    assert not any(client.lost for client in world.clients.values())


def test_2_2_the_pubend_assigns_silence_to_all_older_ticks_since_the_previous_message() -> None:
    # given a pubend with a message
    rig = Rig({"t": ["n"]}, ["n"])
    rig.host()
    rig.publish(100)
    # when the next one is logged at a later tick
    (frame,) = knowledge(rig.publish(250), "n")
    # then its span tells the ticks between them too
    assert (frame.span.since, frame.span.upto, frame.span.ticks) == (101, 250, [250])


def test_2_3_safety_only_matching_messages_and_later_ticks_than_before() -> None:
    # given a client that wants t
    rig = Rig({"t": ["c"], "u": ["d"]}, ["up"], "up")
    rig.join("c", 10)
    # when messages of other topics and late repetitions arrive
    got = given(rig.told(span(11, 20, 12, 13)), "c")
    got += given(rig.told(span(21, 30, 22, topic="u")), "c")
    got += given(rig.told(span(11, 20, 12, 13), again=True), "c")
    got += given(rig.told(span(31, 40, 33)), "c")
    # then it gets its own, each once, with growing ticks
    assert got == [12, 13, 33]


def test_2_3_nothing_beyond_the_doubt_horizon_is_delivered_until_the_gap_is_resolved() -> None:
    # given a gap
    rig = Rig({"t": ["c"]}, ["up"], "up")
    rig.join("c", 10)
    assert given(rig.told(span(15, 20, 16)), "c") == []
    # when the gap is resolved, partly to data and partly to silence
    assert given(rig.told(span(11, 12, 12), again=True), "c") == [12]
    out = rig.told(span(13, 14), again=True)
    # then everything is delivered in order
    assert given(out, "c") == [16]


def test_2_4_a_filter_turns_what_does_not_match_into_silence() -> None:
    # given two neighbours of which one wants u
    rig = Rig({"t": ["n"], "u": ["n", "m"]}, ["n", "m"])
    rig.host()
    # when t and u are published
    first = rig.publish(10, topic="t")
    second = rig.publish(20, topic="u")
    # then both get u, and only one gets t; for the other it has become silence
    assert knowledge(first, "m") == []
    assert [f.span.ticks for f in knowledge(first, "n") + knowledge(second, "n")] == [[10], [20]]
    assert [f.span.ticks for f in knowledge(second, "m")] == [[20]]


def test_2_4_a_tick_becomes_anti_curious_only_if_all_downstream_say_so() -> None:
    # given a broker with two neighbours below
    rig = Rig({"t": ["n", "m"]}, ["up", "n", "m"], "up")
    rig.told(span(1, 100, 10, 50))
    # when one acknowledges
    rig.receive("n", AckUp(P, 60))
    # then nothing goes up; and when the other does, their minimum
    assert acks(*rig.wait(1)) == []
    rig.receive("m", AckUp(P, 40))
    assert acks(*rig.wait(1)) == [40]


def test_2_3_clients_in_total_order_receive_the_same_merged_stream() -> None:
    # given two pubends, three clients in total order at other brokers, and one in publisher order
    roots, clients = {"P": "p1", "Q": "s5"}, {"c1": "s1", "c2": "s2", "c3": "s3", "c4": "s4"}
    world = World(PAPER_TREE, roots, clients, liveness=PAPER, merged=("c1", "c2", "c3"))
    for client in clients:
        world.connect(client)
        world.subscribe(client, range(world.topics), 1)
    world.run(3.0)
    for turn in range(40):
        world.publish("PPQ"[turn % 3], 2)
        world.run(0.02)
    world.settle()
    # then the interleaving is determined by the ticks, and the same for all who asked for it
    orders = [[(p, tick) for p, tick, _, _ in world.clients[c].got] for c in ("c1", "c2", "c3")]
    assert orders[0] == orders[1] == orders[2]
    assert [tick for _, tick in orders[0]] == sorted(tick for _, tick in orders[0])
    assert len(orders[0]) == len(world.clients["c4"].got) == 80


def test_2_4_a_merge_passes_silence_only_if_all_inputs_are_silent_and_asks_those_that_are_not() -> (
    None
):
    # given a client that merges P, which is busy at its own broker, and Q, which is quiet
    roots = {"P": "s1", "Q": "s5"}
    world = World(PAPER_TREE, roots, {"c1": "s1"}, liveness=PAPER, merged=("c1",))
    world.connect("c1")
    world.subscribe("c1", range(world.topics), 1)
    world.run(3.0)
    world.cut("b3", "s5")
    world.publish("P", 3)
    world.run(1.0)
    # then it gets nothing while Q is in doubt, and only Q is asked
    assert world.clients["c1"].got == []
    asked = {frame.pubend for _, _, frame in world.frames if isinstance(frame, Nack)}
    assert "P" not in asked
    assert any(frame.ranges for frame in world.nacks("s1", "b1") if frame.pubend == "Q")
    # when Q has answered, it gets what was held back
    world.link_up("b3", "s5")
    world.settle()
    assert len(world.clients["c1"].got) == 3


# ── 3.1: propagation ─────────────────────────────────────────────────────────────────────


def test_3_1_first_time_silence_is_sent_only_to_curious_brokers() -> None:
    # given a neighbour that asked for ticks in the future, and one that did not
    rig = Rig({"t": ["n"], "u": ["m"], "v": []}, ["n", "m"])
    rig.host()
    rig.publish(10, topic="t")
    rig.publish(11, topic="u")
    rig.receive("n", Nack(P, ((12, 20),)))
    # when nothing for either is published
    out = rig.publish(30, topic="v")
    # then only the curious one hears of it
    assert [(f.span.since, f.span.upto, f.span.ticks) for f in knowledge(out, "n")] == [
        (11, 30, [])
    ]
    assert knowledge(out, "m") == []


def test_3_1_retransmissions_go_only_to_curious_brokers_and_only_that_part() -> None:
    # given two neighbours that missed the same ticks; one of them asks for a part
    rig = Rig({"t": ["n", "m"]}, ["up", "n", "m"], "up")
    rig.receive("n", Nack(P, ((10, 15),)))
    # when the answer comes, longer than the question
    out = rig.told(span(10, 20, 12, 18), again=True)
    # then the part that was asked for goes to who asked
    assert [(f.span.since, f.span.upto, f.span.ticks) for f in knowledge(out, "n")] == [
        (10, 15, [12])
    ]
    assert knowledge(out, "m") == []


def test_3_1_first_time_knowledge_is_not_delayed_by_a_gap() -> None:
    # given an intermediate broker that has missed something
    rig = Rig({"t": ["n"]}, ["up", "n"], "up")
    rig.told(span(1, 10, 5))
    # when knowledge from beyond the gap arrives
    out = rig.told(span(20, 30, 25))
    # then it is passed on at once, and does not claim the gap
    assert [(f.span.since, f.span.upto) for f in knowledge(out, "n")] == [(20, 30)]


def test_3_1_an_ack_is_one_timestamp_and_the_first_broker_that_knows_satisfies_a_nack() -> None:
    # given an intermediate broker that remembers
    rig = Rig({"t": ["n"]}, ["up", "n"], "up")
    rig.told(span(1, 30, 5, 25))
    # when a neighbour asks for what it knows
    out = rig.receive("n", Nack(P, ((4, 10),)))
    # then it answers itself
    assert [(f.span.since, f.span.ticks, f.again) for f in knowledge(out, "n")] == [(4, [5], True)]
    assert nacks(out) == []


def test_3_1_nacks_are_consolidated() -> None:
    # given two neighbours below that miss overlapping ranges
    rig = Rig({"t": ["n", "m"]}, ["up", "n", "m"], "up", PAPER)
    # when both ask
    first = rig.receive("n", Nack(P, ((10, 20),)))
    second = rig.receive("m", Nack(P, ((15, 25),)))
    # then each tick is asked for once
    assert nacks(first) == [(10, 20)]
    assert nacks(second) == [(21, 25)]
    # and the answer reaches both
    out = rig.told(span(10, 25, 16), again=True)
    assert [f.span.ticks for f in knowledge(out, "n") + knowledge(out, "m")] == [[16], [16]]


def test_3_1_curious_ticks_are_forgotten_after_the_least_repetition_interval() -> None:
    # given a question that was passed on
    rig = Rig({"t": ["n"]}, ["up", "n"], "up", PAPER)
    assert nacks(rig.receive("n", Nack(P, ((10, 20),)))) == [(10, 20)]
    # when it is repeated too soon, it is held back; after the interval it passes
    rig.now += PAPER.nack_repeat_s / 2
    assert nacks(rig.receive("n", Nack(P, ((10, 20),)))) == []
    rig.now += PAPER.nack_repeat_s
    assert nacks(rig.receive("n", Nack(P, ((10, 20),)))) == [(10, 20)]


def test_3_1_filtered_ticks_are_acknowledged_only_when_their_silence_was_told() -> None:
    # The paper lets a broker acknowledge filtered ticks at once. We trim acknowledged ticks, and
    # a trimmed tick is reported as lost; so its silence has to be told first.
    # given a pubend whose neighbour has acknowledged what it was told
    rig = Rig({"t": ["n"], "u": []}, ["n"], None, PAPER)
    rig.host()
    rig.publish(10, topic="t")
    rig.receive("n", AckUp(P, 10))
    # when something that it does not want is published
    rig.publish(20, topic="u")
    assert rig.machine.acknowledged(P) == 10
    # then the silence is told before the acknowledgement is asked for
    frames = [f for out in rig.wait(25) for _, f in out.send]
    assert Knowledge(P, Span(11, 20)) in frames
    assert frames.index(Knowledge(P, Span(11, 20))) < frames.index(AckExpected(P, 20, ()))
    rig.receive("n", AckUp(P, 20))
    assert rig.machine.acknowledged(P) == 20


# ── 3.2: failures and liveness ───────────────────────────────────────────────────────────


def test_3_2_a_gap_is_asked_for_after_the_gap_curiosity_threshold() -> None:
    # given a gap
    rig = Rig({"t": ["c"]}, ["up"], "up", PAPER)
    rig.join("c", 10)
    rig.told(span(15, 20, 16))
    # when less than the threshold has passed, nothing; then a nack for the gap alone
    assert nacks(*rig.wait(PAPER.gap_s * 0.9)) == []
    assert nacks(*rig.wait(PAPER.gap_s * 0.2)) == [(11, 14)]


def test_3_2_a_gap_that_closes_by_itself_is_never_asked_for() -> None:
    # given two frames that a link has swapped
    rig = Rig({"t": ["c"]}, ["up"], "up", PAPER)
    rig.join("c", 10)
    rig.told(span(15, 20, 16))
    rig.wait(PAPER.gap_s / 2)
    # when the first one arrives before the threshold
    assert given(rig.told(span(11, 14, 12)), "c") == [12, 16]
    # then nobody is bothered
    assert nacks(*rig.wait(5)) == []


def test_3_2_nacks_are_repeated_with_exponential_backoff_until_satisfied() -> None:
    # given a gap and nobody who answers
    rig = Rig({"t": ["c"]}, ["up"], "up", PAPER)
    rig.join("c", 10)
    rig.told(span(15, 20))
    times = []
    while rig.now < 9.0:
        times += [rig.now for _ in nacks(*rig.wait(0.05))]
    # then each repetition takes twice as long
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert len(pauses) >= 3
    for shorter, longer in pairwise(pauses):
        assert 1.5 < longer / shorter < 2.5
    # when it is answered, it stops
    rig.told(span(11, 14), again=True)
    assert nacks(*rig.wait(60)) == []


def test_3_2_the_subend_asks_if_its_horizon_trails_the_clock() -> None:
    # given a finite delay curiosity threshold, and a last message that was lost
    rig = Rig({"t": ["c"]}, ["up"], "up", PAPER._replace(delay_s=2.0))
    rig.join("c", 10)
    # when the threshold has passed
    asked = nacks(*rig.wait(4.5))
    # then it asks for everything up to there
    assert asked
    assert asked[0][0] == 11


def test_3_2_ack_expected_flows_on_all_paths_that_have_not_acknowledged() -> None:
    # given two neighbours, one of which has acknowledged everything
    rig = Rig({"t": ["n", "m"]}, ["n", "m"], None, PAPER)
    rig.host()
    rig.publish(10)
    rig.receive("n", AckUp(P, 10))
    # when the threshold has passed
    outs = rig.wait(PAPER.ack_expected_s * 2)
    # then the other one is reminded
    assert set(expectations(*outs)) == {("m", 10)}


def test_3_2_ack_expected_makes_a_subend_ask_at_once() -> None:
    # given an edge that has lost the last message without knowing
    rig = Rig({"t": ["c"]}, ["up"], "up", PAPER)
    rig.join("c", 10)
    assert nacks(*rig.wait(5)) == []
    # when an acknowledgement is expected
    out = rig.receive("up", AckExpected(P, 50))
    # then everything unknown up to there is asked for, without waiting
    assert nacks(out) == [(11, 50)]


# ── 4.2: faults ──────────────────────────────────────────────────────────────────────────


def test_4_2_after_a_stalled_link_only_those_below_it_ask_and_all_is_delivered() -> None:
    # given the stream of the paper; the link b1-s1 stalls for 2.5 seconds
    world = paper_world()
    publish_for(world, 1.0)
    begin = len(world.frames)
    world.cut("b1", "s1")
    publish_for(world, 2.5)
    latest = world.clients["c2"].got[-1][1]
    # then a subscriber elsewhere does not notice
    assert latest > world.logs[P].ticks[-5]
    # when the link is back
    world.link_up("b1", "s1")
    publish_for(world, 1.0)
    world.settle()
    # then s1 has asked, b1 has answered from memory, and nobody else has asked anything
    asked = {here for here, _, f in world.frames[begin:] if isinstance(f, Nack)}
    assert asked == {"s1"}


def test_4_2_nack_consolidation_is_almost_perfect() -> None:
    # given a broker b1 that loses what it forwards for 2.75 seconds, then forgets everything
    world = paper_world()
    publish_for(world, 1.0)
    world.cut("p1", "b1")
    publish_for(world, 2.75)
    world.crash("b1")
    world.boot("b1")
    begin = len(world.frames)
    # when the stream goes on
    world.link_up("p1", "b1")
    publish_for(world, 1.0)
    world.settle()
    # then the ticks that b1 asks for are about half of those that s1 and s2 ask for
    asked: dict[str, int] = {}
    for here, _, frame in world.frames[begin:]:
        if isinstance(frame, Nack):
            width = sum(high - low + 1 for low, high in frame.ranges)
            asked[here] = asked.get(here, 0) + width
    assert set(asked) == {"b1", "s1", "s2"}
    assert 0.45 < asked["b1"] / (asked["s1"] + asked["s2"]) < 0.6


def test_4_2_a_pubend_that_comes_back_first_expects_acknowledgements() -> None:
    # given messages that were logged while nothing got out of p1
    world = paper_world()
    publish_for(world, 1.0)
    world.cut("p1", "b1")
    world.cut("p1", "b3")
    publish_for(world, 1.0)
    world.crash("p1")
    quiet = len(world.frames)
    world.run(20.0)
    # then nobody asks for anything while it is down: there is no gap
    assert not any(isinstance(f, Nack) for _, _, f in world.frames[quiet:])
    # when it is back
    world.boot("p1")
    first = next(f for here, _, f in world.frames[quiet:] if here == "p1")
    # then it asks for acknowledgement of the last message it logged, and all arrives
    assert isinstance(first, AckExpected)
    assert first.upto == world.logs[P].last
    world.settle(5.0)
