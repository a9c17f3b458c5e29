"""Schedules by hand: for each part of the rule, a short run that goes wrong without it.

Random runs meet some of them rarely. A schedule is deterministic; it ends, like every run, with a
time to come to rest and one event more on each topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from motet.testing.faults import FaultMenu
from motet.testing.ordering.clients import OrderClient
from motet.testing.ordering.history import CAUSAL, PAIRS
from motet.testing.ordering.world import RunHalted, World

CALM = {
    "pace_s": 0.0,
    "doubled": 0.0,
    "slow": 0.0,
    "failed": 0.0,
    "sync_s": 0.0,
    "lossless": True,
    "lease_s": 1.0,
    "keep_s": 3.0,
    "quiet_s": 8.0,
    "hop_s": (0.001, 0.001),
    "client_hop_s": (0.001, 0.001),
    "near_s": (0.001, 0.001),
    "patience_s": 0.3,
    "witness": True,
    "service_s": (0.001, 0.001),
}
SOON_S = 0.6
"""Enough for a few round trips, and less than a lease."""


class ScheduledWorld(World):
    """A world whose applications do what a schedule says. `placement`: the position of the site of
    each topic. Each client has at most one stream."""

    def __init__(
        self, mode: str, placement: Mapping[str, int], *, standbys: int = 0, story: bool = False
    ) -> None:
        needs = {**CALM, "mode": mode, "sites": 1 + max(placement.values()), "standbys": standbys}
        super().__init__(0, FaultMenu(), needs=needs, story=story)
        self.topics = list(placement)
        self.placement = {topic: self.line[at] for topic, at in placement.items()}
        self.acting = False
        self.cast: dict[str, OrderClient] = {}
        for site in self.processes.values():
            site.start()
        self.wait()

    def wait(self, seconds: float = SOON_S) -> None:
        self.agenda.run(self.agenda.now + seconds)

    def client(self, name: str) -> OrderClient:
        if name not in self.cast:
            self.cast[name] = self.new_client(f"{name}.1", acts=False)
            self.wait()
        return self.cast[name]

    def stream(self, name: str, *topics: str) -> None:
        self.client(name).application.join(list(topics))
        self.wait()

    def publishers(self, **topics: str) -> None:
        """Publishers that know their topics, because they have published there."""
        for name, topic in topics.items():
            self.publish(name, topic)

    def publish(self, name: str, *topics: str, wait_s: float = SOON_S) -> None:
        for topic in topics:
            self.client(name).application.publish(topic)
        self.wait(wait_s)

    def add(self, name: str, topic: str) -> None:
        self.cast[name].application.add_to(1, topic)
        self.wait()

    def drop(self, name: str, topic: str) -> None:
        self.cast[name].application.drop_from(1, topic)
        self.wait()

    def change_slowly(self, name: str, seconds: float, topic: str, *, drop: bool = False) -> None:
        """Change the stream; the answer of its site comes after this time."""
        client = self.cast[name]
        before = len(self.history.memberships)
        (client.application.drop_from if drop else client.application.add_to)(1, topic)
        while len(self.history.memberships) == before:
            self.wait(0.0005)
        for end in client.connections():
            end.peer.last_arrival = self.agenda.now + seconds
        self.wait(0.05)

    def hold(self, name: str, topic: str) -> None:
        """The service keeps messages of the topic back from this client."""
        self.service.held[self.cast[name].name, topic] = []

    def release(self, name: str, topic: str) -> None:
        self.service.release(self.cast[name], topic)
        self.wait()


Schedule = Callable[[ScheduledWorld], None]


class StagedRun(NamedTuple):
    mode: str
    placement: Mapping[str, int]
    standbys: int
    """How many sites have one, from the lowest."""
    happens: Schedule


SCHEDULES: dict[str, StagedRun] = {}


def schedule(mode: str, standbys: int = 0, /, **placement: int) -> Callable[[Schedule], Schedule]:
    def register(happens: Schedule) -> Schedule:
        staged = StagedRun(mode, placement, standbys, happens)
        SCHEDULES[happens.__name__.replace("_", "-")] = staged
        return happens

    return register


def perform(name: str, *, story: bool = False) -> ScheduledWorld:
    staged = SCHEDULES[name]
    stage = ScheduledWorld(staged.mode, staged.placement, standbys=staged.standbys, story=story)
    try:
        staged.happens(stage)
        stage.rest()
    except RunHalted:
        stage.odd("invariants", "the run ended early")
    return stage


# ── sites ────────────────────────────────────────────────────────────────────────────────


@schedule(CAUSAL, a=0, d=0, b=1, c=2)
def a_timestamp_is_slow_between_two_sites(stage: ScheduledWorld) -> None:
    """a is ordered before d, d before b, b before c; a must not come behind c at the highest."""
    for name, topics in {"w": "ad", "x": "db", "y": "bc", "z": "ca"}.items():
        stage.stream(name, *topics)
    stage.publishers(pa="a", pd="d", pb="b", pc="c")
    stage.wire_between[frozenset(("S0", "S2"))].stalled_until = stage.agenda.now + 0.4
    for topic in "adbc":
        stage.publish(f"p{topic}", topic, wait_s=0.05)
    stage.wait()


@schedule(PAIRS, T=0, U=0)
def another_stream_makes_a_pair_of_two_topics(stage: ScheduledWorld) -> None:
    """X has T and U. W gets f on U, and adds T: from now on the two are ordered, f, too."""
    stage.stream("x", "T", "U")
    stage.stream("w", "U")
    stage.hold("x", "U")
    stage.publish("p", "U")
    stage.publish("p", "T")
    stage.add("w", "T")
    stage.publish("p", "T")
    stage.release("x", "U")


@schedule(PAIRS, T=0, U=0)
def a_stream_drops_a_topic_after_an_event(stage: ScheduledWorld) -> None:
    """X and Z have T and U. X gets f on U, and drops U; e on T: X has f e, and so must Z."""
    stage.stream("x", "T", "U")
    stage.stream("z", "T", "U")
    stage.hold("z", "U")
    stage.publish("p", "U")
    stage.drop("x", "U")
    stage.publish("p", "T")
    stage.release("z", "U")


@schedule(PAIRS, U=0, V=0, T=1)
def a_stream_drops_a_topic_and_joins_another(stage: ScheduledWorld) -> None:
    """X has U and V, gets f on U, drops U, joins T; e on T. Y has T and U: f comes before e."""
    stage.stream("y", "T", "U")
    stage.stream("x", "U", "V")
    stage.hold("y", "U")
    stage.publish("p", "U")
    stage.drop("x", "U")
    stage.add("x", "T")
    stage.publish("q", "T")
    stage.release("y", "U")


@schedule(CAUSAL, T=0)
def an_answer_is_lost(stage: ScheduledWorld) -> None:
    stage.stream("x", "T")
    stage.publishers(p="T")
    client = stage.cast["p"]
    for end in client.connections():
        end.peer.last_arrival = stage.agenda.now + 0.1
    stage.publish("p", "T", wait_s=0.05)
    client.drop()
    stage.wait(3.0)


@schedule(CAUSAL, T=0)
def a_publisher_dies_with_its_number(stage: ScheduledWorld) -> None:
    stage.stream("x", "T")
    stage.publishers(q="T", p="T")
    stage.cast["q"].doom = "numbered"
    stage.publish("q", "T")
    stage.publish("p", "T", wait_s=4.0)


@schedule(CAUSAL, T=0, U=0)
def a_void_number_has_entries(stage: ScheduledWorld) -> None:
    """u, then a number of T that becomes void, then t: only the void one names u."""
    stage.stream("x", "T", "U")
    stage.stream("y", "T", "U")
    stage.publishers(q="T", p="U")
    stage.publish("p", "T")
    stage.hold("x", "U")
    stage.publish("p", "U")
    stage.cast["q"].doom = "numbered"
    stage.publish("q", "T", wait_s=0.1)
    stage.publish("p", "T", wait_s=4.0)
    stage.release("x", "U")


@schedule(CAUSAL, T=0, U=0)
def a_stream_expires_without_knowing_it(stage: ScheduledWorld) -> None:
    stage.stream("x", "T", "U")
    stage.publish("p", "T", "U")
    stage.cast["x"].isolated = True
    stage.cast["x"].drop()
    stage.wait(5.0)
    stage.hold("x", "T")
    stage.publish("p", "T")
    stage.publish("p", "U")
    stage.release("x", "T")


# ── replicas ─────────────────────────────────────────────────────────────────────────────


@schedule(CAUSAL, 1, T=0)
def both_replicas_die_before_the_second_disk_is_done(stage: ScheduledWorld) -> None:
    """The standby comes back first, and leads without what its disk has lost."""
    one, other = stage.sites["S0"], stage.sites["S0b"]
    stage.stream("x", "T")
    stage.publish("p", "T")
    other.slow_disk_s = 2.0
    stage.publish("p", "T", "T", wait_s=0.3)
    one.kill()
    other.kill(loses=True)
    other.slow_disk_s = 0.0
    other.start()
    stage.wait(3.0)
    stage.publish("q", "T", wait_s=2.0)
    one.start()
    stage.wait(3.0)


@schedule(CAUSAL, 1, T=0)
def a_primary_dies_while_its_image_is_on_its_way(stage: ScheduledWorld) -> None:
    """The standby was away. It must not lead before it has what happened meanwhile."""
    one, other = stage.sites["S0"], stage.sites["S0b"]
    stage.stream("x", "T")
    stage.publish("p", "T")
    other.kill()
    stage.wait(2.0)
    stage.publish("p", "T", "T", wait_s=2.0)
    wire = stage.wire_between[frozenset(("S0", "S0b"))]
    wire.hop_s = (0.4, 0.4)
    other.start()
    while one.core.pair.fed is None:
        stage.wait(0.01)
    stage.wait(0.2)
    for end in list(one.ends.values()):
        if end.connection.wire is wire:
            stage.network.sever(end.connection)
    wire.hop_s = None
    one.kill()
    stage.wait(3.0)
    stage.publish("q", "T", wait_s=2.0)
    one.start()
    stage.wait(3.0)


# ── clients ──────────────────────────────────────────────────────────────────────────────


@schedule(CAUSAL, T=0, U=0)
def events_come_while_a_topic_is_added(stage: ScheduledWorld) -> None:
    stage.stream("x", "T")
    stage.stream("y", "T", "U")
    stage.publishers(p="T", q="U")
    stage.change_slowly("x", 1.0, "U")
    stage.publish("q", "U", wait_s=0.05)
    stage.publish("p", "T", wait_s=0.05)
    stage.wait(2.0)


@schedule(CAUSAL, T=0, U=0)
def an_event_from_before_the_cut_is_slow(stage: ScheduledWorld) -> None:
    stage.stream("x", "T")
    stage.stream("y", "T", "U")
    stage.hold("x", "T")
    stage.publish("p", "T")
    stage.publish("p", "U")
    stage.add("x", "U")
    stage.publish("q", "U")
    stage.release("x", "T")


@schedule(CAUSAL, T=0, U=0)
def events_come_while_a_topic_is_dropped(stage: ScheduledWorld) -> None:
    stage.stream("x", "T", "U")
    stage.publish("p", "T", "U")
    stage.hold("x", "T")
    stage.change_slowly("x", 2.0, "T", drop=True)
    stage.publish("p", "T")
    stage.publish("p", "U")
    stage.release("x", "T")
    stage.wait(2.0)


@schedule(CAUSAL, T=0, U=0)
def a_publisher_wants_several_numbers_at_once(stage: ScheduledWorld) -> None:
    stage.stream("x", "T", "U")
    stage.cast["p"] = stage.new_client("p.1", acts=False)
    stage.publish("p", "T", "U", wait_s=2.0)


@schedule(CAUSAL, T=0, U=1)
def a_publisher_turns_to_another_site(stage: ScheduledWorld) -> None:
    stage.stream("x", "T", "U")
    stage.publish("p", "T", "U", wait_s=2.0)
    stage.wire_between[frozenset(("S0", "S1"))].stalled_until = stage.agenda.now + 0.3
    stage.publish("p", "T", "U", wait_s=2.0)


@schedule(CAUSAL, T=0)
def an_event_comes_behind_its_void_number(stage: ScheduledWorld) -> None:
    stage.stream("x", "T")
    stage.publishers(q="T", p="T")
    stage.hold("x", "T")
    stage.cast["q"].doom = "published"
    stage.publish("q", "T", wait_s=2.0)
    stage.service.held["x.1", "T"], late = [], stage.service.held["x.1", "T"]
    stage.release("x", "T")
    stage.publish("p", "T", wait_s=2.0)
    stage.service.held["x.1", "T"] = late
    stage.release("x", "T")
