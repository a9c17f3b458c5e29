"""Bugs in order across topics, at sites and at clients: each leaves out one part of the rule.

Random runs catch most of them. Those that they catch rarely, or not within forty seeds, name a
schedule of `motet.testing.ordering.schedules`, which is performed instead of a random run.
`tests/unit/ordering/test_schedules.py` has a schedule for each bug.
"""

from __future__ import annotations

from typing import Any

from motet.ordering.delivery import EVENT, LATE, Clocks
from motet.ordering.publisher import Publisher
from motet.ordering.stream import ADD, DROP, StreamMachine
from motet.protocol.sequencing.facts import NumbersRequested
from motet.protocol.sequencing.groups import Groups
from motet.protocol.sequencing.messages import (
    CAUSAL,
    VOID,
    StampPassage,
    Timestamp,
)
from motet.protocol.sequencing.site import Site
from motet.sequencer.core import SiteCore
from motet.testing.bugs.catalogue import Patch, around, mutation, nothing, replaces

# ── sites ────────────────────────────────────────────────────────────────────────────────


@mutation("ordering", "causality", "completeness", "settles", mode=CAUSAL, sites=4)
@around(Site, "_send_up")
def sites_outside_the_group_are_skipped(
    original: Any, self: Site, first: int, rows: Any, out: Any
) -> None:
    """A timestamp does not pass the sites between its first one and the next one that has a topic
    of its group."""
    before = len(out.sends)
    for row in rows:
        original(self, first, [row], out)
    for at in range(before, len(out.sends)):
        message = out.sends[at][1]
        assert isinstance(message, StampPassage)
        above = self.groups._above.get(message.stamps[0].topic) if first == self.position else None
        if above:
            out.sends[at] = (min(above), message)


@mutation("ordering", "notification-order", schedule="another-stream-makes-a-pair-of-two-topics")
@around(Groups, "_begin")
def new_partners_are_not_told(original: Any, self: Groups, topic: int, other: int) -> None:
    """A timestamp does not name a topic that is new in its group, unless that has changed since."""
    original(self, topic, other)
    self.fresh.pop(topic, None)


@mutation("ordering", "notification-order", schedule="a-stream-drops-a-topic-after-an-event")
@around(Site, "_change")
def a_stream_counts_with_what_it_has_now(original: Any, self: Site, passage: Any, out: Any) -> None:
    """In mode `pairs` a stream is noted with its present topics, and not with all it has ever
    had."""
    original(self, passage, out)
    if passage.topics and not passage.expired:
        having = self.groups.noted.get(passage.stream, ())
        self.groups.note(passage.stream, [each for each in having if each in passage.topics])


@mutation("ordering", "notification-order", schedule="a-stream-drops-a-topic-and-joins-another")
def a_change_names_only_what_the_stream_has() -> list[Patch]:
    """In mode `pairs` a change passes the sites of the present topics and of those before it, and
    not those of all topics that the stream has ever had."""
    note = Groups.note

    def named(_: Site, home: Any, topics: Any) -> tuple[int, ...]:
        return tuple(dict.fromkeys((*home.topics, *topics)))

    def noting(self: Groups, stream: str, topics: Any) -> None:
        known = tuple(topics)
        note(self, stream, dict.fromkeys((*self.noted.get(stream, ()), *known)) if known else ())

    return [Patch(Site, "named", named), Patch(Groups, "note", noting)]


@mutation("ordering", "numbers", "settles", "invariants")
def a_repeated_request_gets_a_new_number() -> list[Patch]:
    """A site gives a number to each request that comes, also if it has answered it before."""
    request_number, requested = SiteCore._number_request, Site._numbers_requested

    def taking(
        self: SiteCore, connection: int, peer: Any, request: Any, out: Any, now: float
    ) -> None:
        instance = self.site.instances.get(peer.name)
        if instance is None or request.first > instance.taken:
            request_number(self, connection, peer, request, out, now)
            return
        fact = NumbersRequested(peer.name, request.first, request.topics, request.confirmed)
        self._journal(fact, out, now)

    def giving(self: Site, fact: NumbersRequested, out: Any) -> None:
        instance = self.instances.get(fact.client)
        if instance is not None:
            instance.taken = max(min(instance.taken, fact.first - 1), instance.settled)
        requested(self, fact, out)

    return [
        Patch(SiteCore, "_number_request", taking),
        Patch(Site, "_numbers_requested", giving),
    ]


@mutation("ordering", "settles", "completeness")
@replaces(Site, "overdue")
def no_number_becomes_void(*_: Any) -> None:
    """A site waits for ever for the publisher of an open number."""


@mutation("ordering", "notification-order", "causality")
@around(Site, "became")
def a_void_number_loses_its_timestamp(original: Any, self: Site, *args: Any) -> Any:
    """A stream passes a void number without waiting for what comes before it."""
    state, stamp = original(self, *args)
    if state == VOID and stamp is not None:
        stamp = Timestamp(stamp.topic, stamp.number)
    return state, stamp


@mutation(
    "ordering",
    "notification-order",
    "causality",
    schedule="a-stream-expires-without-knowing-it",
)
@around(Site, "_change")
def the_expired_are_not_told(original: Any, self: Site, passage: Any, out: Any) -> None:
    """No timestamp tells a stream that it has expired: it goes on with its topics in any order."""
    original(self, passage, out)
    self.gone.clear()


# ── clients ──────────────────────────────────────────────────────────────────────────────


@mutation("ordering", "notification-order", "causality")
@around(StreamMachine, "_send_change")
def a_joiner_does_not_stop(original: Any, self: StreamMachine, change: Any, topics: Any) -> None:
    """A stream goes on delivering while it adds a topic."""
    original(self, change, topics)
    if change.kind == ADD:
        self.clocks.stopped = False


@mutation("ordering", "notification-order", "causality")
@around(Clocks, "cut")
def a_joiner_does_not_wait_for_its_cut(
    original: Any, self: Clocks, added: Any, _former: Any
) -> None:
    """The first event of a new topic does not wait for what the stream has had before the cut."""
    original(self, added, {})


@mutation("ordering", "causality", schedule="events-come-while-a-topic-is-dropped")
def a_dropped_topic_is_delivered_until_the_answer() -> list[Patch]:
    """A stream delivers events of a topic until its sites have answered that it is dropped."""
    apply, leave = StreamMachine._apply, StreamMachine._leave

    def applying(self: StreamMachine, change: Any, cut: Any, now: float) -> Any:
        if change.kind == DROP:
            leave(self, change)
        return apply(self, change, cut, now)

    return [Patch(StreamMachine, "_leave", nothing), Patch(StreamMachine, "_apply", applying)]


@mutation("ordering", "causality", mode=CAUSAL)
@around(Publisher, "_ask")
def requests_leave_in_any_order(original: Any, self: Publisher, now: float) -> None:
    """A publisher asks for the number of its last event first."""
    self.queue.reverse()
    original(self, now)


@mutation("ordering", "causality", mode=CAUSAL)
@around(Publisher, "_ask")
def a_publisher_does_not_wait_between_sites(original: Any, self: Publisher, now: float) -> None:
    """A publisher turns to another site while timestamps of the former one are on their way."""
    self._site = ""
    original(self, now)


@mutation("ordering", "settles", "completeness")
@replaces(StreamMachine, "_ask")
def nobody_asks(*_: Any) -> None:
    """A stream does not ask what became of a number that it waits for."""


@mutation("ordering", "notification-order", "causality", "completeness")
@around(StreamMachine, "_give")
def late_events_are_not_tagged(original: Any, self: StreamMachine, passed: Any) -> None:
    """An event whose place was passed is given as if it were in order."""
    original(self, passed._replace(kind=EVENT) if passed.kind == LATE else passed)
