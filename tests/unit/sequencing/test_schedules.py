"""Random schedules of sites, publishers and streams, and the written ones that each rule is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from motet.protocol.sequencing.facts import StreamsExpired
from motet.protocol.sequencing.messages import CAUSAL, MODES, PAIRS, ChangePassage, StampPassage
from motet.protocol.sequencing.site import Site, SiteEffects
from tests.unit.sequencing.world import Inverted, Publisher, Stalled, Stream, Token, World, run

SEEDS = 300
"""Schedules in one test."""
T, U = 0, 1


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_random_schedules_keep_the_order_and_end(mode: str, part: int) -> None:
    events = voided = late = lives = 0
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        world = run(seed, mode)
        events += sum(len(session) for stream in world.streams for session in stream.sessions)
        voided += sum(len(publisher.voided) for publisher in world.publishers.values())
        late += sum(len(stream.late) for stream in world.streams)
        lives += sum(stream.lives - 1 for stream in world.streams)
    assert events > 10 * SEEDS
    assert min(voided, late, lives) > 0  # the schedules are not tame


def test_without_faults_every_event_of_a_topic_is_delivered() -> None:
    for seed in range(100):
        world = run(seed, faults=False)
        for stream in world.streams:
            assert stream.lives == 1
            for topic, upto in stream.clock.items():
                got = [number for each, number in stream.sessions[0] if each == topic]
                assert got == list(range(got[0], upto + 1)) if got else True


# ── written schedules ────────────────────────────────────────────────────────────────────


def carry_all(world: World) -> None:
    while links := world.links():
        world.carry(*links[0], most=100)


def hear_all(world: World) -> None:
    carry_all(world)
    for stream in world.streams:
        while stream.inbox:
            stream.hear()
    for publisher in world.publishers.values():
        for site in list(publisher.inbox):
            while publisher.inbox[site]:
                publisher.hear(site)


def send(publisher: Publisher, topic: int) -> Token:
    """Request a number, publish the event."""
    (token,) = publisher.request(topic)
    hear_all(publisher.world)
    publisher.publish(token)
    return token


def get(stream: Stream, *tokens: Token) -> None:
    """These events arrive, in this sequence."""
    for token in tokens:
        at = next(at for at, stamp in enumerate(stream.bag) if stamp == token.stamp)
        stream.receive(at)


def the_joiner_stops(world: World) -> None:
    x, y, p = Stream(world, "x", T), Stream(world, "y", T, U), Publisher(world, "p")
    hear_all(world)
    x.add(U)
    (f,), (e,) = p.request(U), p.request(T)
    while p.inbox[0]:
        p.hear(0)
    p.publish(f)
    p.publish(e)
    get(x, e)  # its answer is still on the way
    get(y, f, e)


def waiting_for_the_cut(world: World) -> None:
    x, y, p = Stream(world, "x", T), Stream(world, "y", T, U), Publisher(world, "p")
    hear_all(world)
    e, g = send(p, T), send(p, U)
    x.add(U)
    hear_all(world)
    f = send(p, U)
    get(x, f, e)
    get(y, e, g, f)


def dropping_begins_at_once(world: World) -> None:
    x, p = Stream(world, "x", T, U), Publisher(world, "p")
    hear_all(world)
    x.drop(U)
    (f,), (e,) = p.request(U), p.request(T)
    while p.inbox[0]:
        p.hear(0)
    p.publish(f)
    p.publish(e)
    get(x, e, f)


def late_ones_are_tagged(world: World) -> None:
    x, y, p = Stream(world, "x", T, U), Stream(world, "y", T, U), Publisher(world, "p")
    hear_all(world)
    e = send(p, T)
    for site in list(p.tokens):
        p.confirm(site)
    x.ask(impatient=True)
    f = send(p, U)
    get(x, f, e)
    get(y, e, f)


def a_void_number_keeps_its_timestamp(world: World) -> None:
    x, y, p = Stream(world, "x", T, U), Stream(world, "y", T, U), Publisher(world, "p")
    hear_all(world)
    e = send(p, T)
    (v,) = p.request(U)
    p.give_back(0, v)
    g = send(p, U)
    get(x, g)
    x.ask()
    get(x, e)
    get(y, e, g)


def the_expired_are_told(world: World) -> None:
    x, p = Stream(world, "x", T, U), Publisher(world, "p")
    hear_all(world)
    world.apply(0, StreamsExpired((x.id,)))
    e, f = send(p, T), send(p, U)
    get(x, f, e)


def waiting_between_sites(world: World) -> None:
    x, p = Stream(world, "x", T, U), Publisher(world, "p")
    hear_all(world)
    p.request(T)
    if p.may_turn_to(1):
        p.request(U)
    del x


def void(world: World) -> None:
    x, p = Stream(world, "x", T), Publisher(world, "p")
    hear_all(world)
    p.request(T)
    p.alive = False
    send(Publisher(world, "q"), T)
    del x


def asking(world: World) -> None:
    x, p = Stream(world, "x", T), Publisher(world, "p")
    hear_all(world)
    (token,) = p.request(T)
    p.give_back(0, token)
    send(p, T)
    del x


Schedule = Callable[[World], None]
LEFT_OUT: list[tuple[Schedule, int, type[Exception]]] = [
    (the_joiner_stops, 1, Inverted),
    (waiting_for_the_cut, 1, Inverted),
    (dropping_begins_at_once, 1, Inverted),
    (late_ones_are_tagged, 1, Inverted),
    (a_void_number_keeps_its_timestamp, 1, Inverted),
    (the_expired_are_told, 1, Inverted),
    (waiting_between_sites, 2, Inverted),
    (void, 1, Stalled),
    (asking, 1, Stalled),
]


def play(schedule: Schedule, **settings: Any) -> World:
    world = World(**settings)
    schedule(world)
    world.settle()
    world.check()
    return world


@pytest.mark.parametrize(
    ("schedule", "sites", "problem"), LEFT_OUT, ids=[row[0].__name__ for row in LEFT_OUT]
)
def test_a_rule_that_the_stream_or_the_publisher_must_follow(
    schedule: Schedule, sites: int, problem: type[Exception]
) -> None:
    rule = schedule.__name__.replace("_", " ")
    topics = 2 if sites == 1 else 1
    play(schedule, sites=sites, topics=topics)
    with pytest.raises(problem):
        play(schedule, sites=sites, topics=topics, removed={rule})


# ── rules of the sites ───────────────────────────────────────────────────────────────────


def one_comes_to_the_pair(world: World) -> None:
    x, y, p = Stream(world, "x", T, U), Stream(world, "y", U), Publisher(world, "p")
    hear_all(world)
    f, before = send(p, U), send(p, T)
    y.add(T)
    hear_all(world)
    e = send(p, T)
    get(x, before, e, f)
    get(y, f, e)


def test_new_partners_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    play(one_comes_to_the_pair, mode=PAIRS, sites=1)
    entries = Site._entries

    def without_new_ones(self: Site, topic: int) -> tuple[int, ...]:
        self.groups.fresh.clear()
        return entries(self, topic)

    monkeypatch.setattr(Site, "_entries", without_new_ones)
    with pytest.raises(Inverted):
        play(one_comes_to_the_pair, mode=PAIRS, sites=1)


def one_drops_what_it_has_read(world: World) -> None:
    x, z, p = Stream(world, "x", T, U), Stream(world, "z", U, T), Publisher(world, "p")
    hear_all(world)
    f = send(p, U)
    get(x, f)
    x.drop(U)
    hear_all(world)
    e = send(p, T)
    get(x, e)
    get(z, e, f)


def test_in_pairs_a_stream_counts_with_all_that_it_ever_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play(one_drops_what_it_has_read, mode=PAIRS, sites=1)
    create = Site.__init__

    def with_the_present(self: Site, position: int, count: int, mode: str, **rest: Any) -> None:
        create(self, position, count, mode, **rest)
        self.mode = CAUSAL  # what is noted; groups still ask for two streams

    monkeypatch.setattr(Site, "__init__", with_the_present)
    with pytest.raises(Inverted):
        play(one_drops_what_it_has_read, mode=PAIRS, sites=1)


def one_joins_where_it_had_less(world: World) -> None:
    """U and V live at the lower site, T at the higher one."""
    u, v, t = 0, 2, 1
    x, y, p = Stream(world, "x", u, v), Stream(world, "y", t, u), Publisher(world, "p")
    hear_all(world)
    f = send(p, u)
    get(x, f)
    x.drop(u)
    hear_all(world)
    x.add(t)
    hear_all(world)
    e = send(p, t)
    get(x, e)
    get(y, e, f)


def test_in_pairs_a_change_names_all_that_a_stream_ever_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play(one_joins_where_it_had_less, mode=PAIRS, sites=2)
    change = Site._change

    def of_the_present(self: Site, passage: ChangePassage, out: SiteEffects) -> None:
        known = {each: upto for each, upto in passage.numbers.items() if each in passage.topics}
        change(self, replace(passage, numbers=known), out)

    monkeypatch.setattr(Site, "_change", of_the_present)
    with pytest.raises(Inverted):
        play(one_joins_where_it_had_less, mode=PAIRS, sites=2)


def a_change_overtakes_a_timestamp(world: World) -> None:
    a, b, c = 0, 1, 2
    x, p, q = Stream(world, "x", a, c), Publisher(world, "p"), Publisher(world, "q")
    hear_all(world)
    p.request(a)
    x.add(b)
    slow = (0, 2)
    while links := [link for link in world.links() if link != slow]:
        world.carry(*links[0], most=100)
    while x.inbox:
        x.hear()
    q.request(b)
    while links := [link for link in world.links() if link != slow]:
        world.carry(*links[0], most=100)
    while q.inbox[1]:
        q.hear(1)
    q.request(c)


def test_a_timestamp_passes_every_site_between(monkeypatch: pytest.MonkeyPatch) -> None:
    play(a_change_overtakes_a_timestamp, sites=3, topics=1)

    def skipping(self: Site, first: int, rows: Any, out: Any) -> None:
        for last, stamp in rows:
            above = self.groups._above.get(stamp.topic, {last: 1})
            target = min(site for site in above if site > self.position)
            out.sends.append((target, StampPassage(first, (last,), (stamp,))))

    monkeypatch.setattr(Site, "_send_up", skipping)
    with pytest.raises(Stalled):
        play(a_change_overtakes_a_timestamp, sites=3, topics=1)
