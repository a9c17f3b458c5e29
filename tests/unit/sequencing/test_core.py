"""The core of a site, frame by frame."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from motet.errors import StaleState
from motet.protocol.contract import Close, Closed, Dialled, Fact, Output, Received, TimerFired
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.messages import Control, ControlAck, LinkHello
from motet.protocol.sequencing.messages import (
    FORGOTTEN,
    LAST_NUMBER,
    MAX_ASKED,
    MAX_REQUESTS_PER_FRAME,
    MAX_TOPIC_CHARS,
    MAX_TOPICS_OF_STREAM,
    MAX_TOPICS_PER_FRAME,
    MAX_UNSETTLED,
    OPEN,
    PAIRS,
    PUBLISHED,
    UNGIVEN,
    VOID,
    AskNumbers,
    Changed,
    ChangeMade,
    ChangePassage,
    ChangeRequest,
    Confirm,
    Far,
    GiveBack,
    HowFar,
    Keep,
    NumberRequest,
    Numbers,
    OrderHello,
    OrderWelcome,
    RequestsSettled,
    Stamped,
    StampPassage,
    StreamsKept,
    Timestamp,
    Told,
    TopicIds,
    TopicQuery,
)
from motet.protocol.sequencing.site import FRAME_ENTRIES, FRAME_STAMPS, Site, effects
from motet.protocol.traits import TRAITS
from motet.sequencer.config import SiteConfig
from motet.sequencer.core import SiteCore
from motet.sequencer.durable import DurableSite
from tests.unit.examples import frames

ALICE, BOB, LINK, STRANGER = 1, 2, 3, 4
T, U = 0, 2
LINE = ("a", "b")
PLACEMENT = (("far*", "b"),)


class Bench:
    """Site a of a line of two, or alone; alice and bob are connected."""

    def __init__(self, *, line: tuple[str, ...] = LINE, **settings: Any) -> None:
        placement = PLACEMENT if len(line) > 1 else ()
        self.config = SiteConfig("a", line, placement, **settings)
        self.core = SiteCore(self.config)
        self.facts: list[Fact] = []
        self.now = 100.0
        self.core.recover(self.now)
        self.send(ALICE, OrderHello(PROTOCOL_VERSION, "alice"))
        self.send(BOB, OrderHello(PROTOCOL_VERSION, "bob"))
        self.send(ALICE, TopicQuery(("t", "u")))

    def step(self, given: Any) -> Output:
        out = self.core.step(given, self.now)
        self.facts += out.persist
        self.core.validate()
        return out

    def send(self, connection: int, frame: Frame) -> Output:
        return self.step(Received(connection, frame))

    def answer(self, connection: int, frame: Frame) -> Any:
        """The only answer to a frame."""
        out = self.send(connection, frame)
        ((to, answer),) = out.deliver
        assert to == connection
        assert not out.close
        return answer

    def sweep(self, later_s: float) -> Output:
        self.now += later_s
        return self.step(TimerFired(("sweep",)))

    def again(self) -> None:
        """The site starts again, with the facts that it has written."""
        durable = DurableSite(self.config)
        durable.replay(self.facts)
        assert durable.digest() == self.core.durable.digest()
        self.core = SiteCore(self.config, durable)
        self.core.recover(self.now)


def stamp(topic: int, number: int, *entries: int, gone: tuple[str, ...] = ()) -> Timestamp:
    return Timestamp(topic, number, entries, gone)


# ── clients ──────────────────────────────────────────────────────────────────────────────


def test_a_welcome_tells_line_and_placement() -> None:
    bench = Bench(addresses={"b": "motet://b:1"})
    bench.core.listens_at("motet://a:1")
    welcome = bench.answer(7, OrderHello(PROTOCOL_VERSION, "carol"))
    assert isinstance(welcome, OrderWelcome)
    assert welcome.line == (("a", "motet://a:1"), ("b", "motet://b:1"))
    assert (welcome.placement, welcome.elsewhere, welcome.answered) == (PLACEMENT, "a", 0)


def test_a_hello_of_another_version_is_refused() -> None:
    out = Bench().send(7, OrderHello(PROTOCOL_VERSION + 1, "carol"))
    assert out.close[0].error == "VersionError"


def test_the_newest_connection_of_an_instance_wins() -> None:
    bench = Bench()
    out = bench.send(7, OrderHello(PROTOCOL_VERSION, "alice"))
    assert out.close == [Close(ALICE, "", "a newer connection took over")]
    bench.step(Closed(ALICE))
    assert bench.answer(7, HowFar((T,))) == Far({T: 0})
    late = bench.send(6, OrderHello(PROTOCOL_VERSION, "alice"))
    assert [close.connection for close in late.close] == [6]
    assert bench.answer(7, HowFar((T,))) == Far({T: 0})


def test_topics_get_ids_that_tell_their_site() -> None:
    bench = Bench()
    assert bench.answer(BOB, TopicQuery(("u", "v", "t"))) == TopicIds({"u": U, "v": 4, "t": T})
    facts = len(bench.facts)
    assert bench.answer(BOB, TopicQuery(("v",))) == TopicIds({"v": 4})
    assert len(bench.facts) == facts


def test_a_site_takes_only_so_many_topics() -> None:
    bench = Bench(most_topics=3)
    bench.send(ALICE, TopicQuery(("v",)))
    out = bench.send(ALICE, TopicQuery(("w",)))
    assert [close.error for close in out.close] == ["NotOffered"]
    assert not out.persist


WRONG: dict[str, Frame] = {
    "a name of a topic elsewhere": TopicQuery(("far away",)),
    "a long name": TopicQuery(("x" * (MAX_TOPIC_CHARS + 1),)),
    "an empty name": TopicQuery(("",)),
    "an unprintable name": TopicQuery(("a\nb",)),
    "many names": TopicQuery(("x",) * (MAX_TOPICS_PER_FRAME + 1)),
    "a topic that is unknown": NumberRequest(4, (40,)),
    "a topic elsewhere": NumberRequest(4, (1,)),
    "a negative topic": NumberRequest(4, (-2,)),
    "request 0": NumberRequest(0, (T,)),
    "a negative request": NumberRequest(-1, (T,)),
    "a huge request": NumberRequest(LAST_NUMBER + 1, (T,)),
    "many requests": NumberRequest(4, (T,) * (MAX_REQUESTS_PER_FRAME + 1)),
    "a request for another topic than before": NumberRequest(1, (U,)),
    "confirming what was not requested": NumberRequest(4, (T,), 4),
    "confirming what was not answered": Confirm(3),
    "confirming more than was requested": Confirm(4),
    "confirming a negative number": Confirm(-1),
    "giving back what was not requested": GiveBack((4,)),
    "giving back request 0": GiveBack((0,)),
    "a change to a negative topic": ChangeRequest("x", 2, (-1,)),
    "a change to a topic named twice": ChangeRequest("x", 2, (T, T)),
    "a change that is too early": ChangeRequest("x", 3, (T,)),
    "change 0": ChangeRequest("x", 0, (T,)),
    "a stream without a name": ChangeRequest("", 1, (T,)),
    "a stream with a long name": ChangeRequest("x" * 129, 1, (T,)),
    "a stream of another client": ChangeRequest("of bob", 2, (T,)),
    "asking for number 0": AskNumbers(T, (0,)),
    "asking for a number beyond the last": AskNumbers(T, (LAST_NUMBER + 1,)),
    "asking about a topic elsewhere": AskNumbers(1, (1,)),
    "asking too much": AskNumbers(T, (1,) * (MAX_ASKED + 1)),
    "asking how far an unknown topic is": HowFar((40,)),
    "a second hello": OrderHello(PROTOCOL_VERSION, "carol"),
    "a frame between sites": ControlAck(1),
    "an answer": Numbers(1, ()),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_misbehaving_client_is_expelled_and_nothing_else_happens(what: str) -> None:
    bench = Bench()
    bench.send(BOB, ChangeRequest("of bob", 1, (T, 1)))
    bench.send(ALICE, ChangeRequest("x", 1, (U,)))
    bench.send(ALICE, NumberRequest(1, (T, U, T)))  # those for T are on their way to b
    before, facts = bench.core.durable.digest(), len(bench.facts)
    out = bench.send(ALICE, WRONG[what])
    assert [(close.connection, close.error) for close in out.close] == [(ALICE, "ProtocolError")]
    assert not out.deliver
    assert (bench.core.durable.digest(), len(bench.facts)) == (before, facts)
    assert bench.core.counts.expelled == {"ProtocolError": 1}
    assert isinstance(bench.answer(BOB, HowFar((T,))), Far)


@pytest.mark.parametrize("connection", [ALICE, LINK, STRANGER])
@pytest.mark.parametrize("frame", frames(), ids=lambda frame: type(frame).__name__)
def test_every_frame_is_taken_or_its_sender_is_expelled(frame: Frame, connection: int) -> None:
    bench = Bench()
    bench.step(Dialled(LINK, "b"))
    bench.send(LINK, LinkHello(PROTOCOL_VERSION, "b", 5, 0, 0, True, root=bench.config.identity))
    out = bench.send(connection, frame)
    who = {ALICE: "sequenced", LINK: "broker", STRANGER: "nobody"}[connection]
    errors = [close.error for close in out.close if close.connection == connection]
    if who not in TRAITS[type(frame)].senders:
        assert errors == ["ProtocolError"]
    assert set(errors) <= {"ProtocolError", "UnknownBroker"}
    assert isinstance(bench.answer(BOB, HowFar((T,))), Far)


# ── numbers ──────────────────────────────────────────────────────────────────────────────


def test_a_timestamp_names_what_changed_since_its_topic_passed() -> None:
    bench = Bench(line=("a",))
    t, u, v = 0, 1, 2
    bench.send(ALICE, TopicQuery(("v",)))
    bench.send(ALICE, ChangeRequest("x", 1, (t, u)))
    assert bench.answer(ALICE, NumberRequest(1, (u, v, t, t))).stamps == (
        stamp(u, 1),
        stamp(v, 1),  # nobody has it together with another one
        stamp(t, 1, u, 1),
        stamp(t, 2),
    )
    assert bench.answer(BOB, NumberRequest(1, (u,))).stamps == (stamp(u, 2, t, 2),)
    bench.send(ALICE, ChangeRequest("x", 2, (t, u, v)))
    assert bench.answer(BOB, NumberRequest(2, (t,))).stamps == (stamp(t, 3, u, 2, v, 1),)


def test_a_repeated_request_gets_the_same_numbers_and_a_gap_is_ignored() -> None:
    bench = Bench()
    first = bench.answer(ALICE, NumberRequest(1, (T, U)))
    facts = len(bench.facts)
    assert bench.answer(ALICE, NumberRequest(1, (T, U))) == first
    assert not bench.send(ALICE, NumberRequest(4, (T,))).deliver
    assert len(bench.facts) == facts
    out = bench.send(ALICE, NumberRequest(2, (U, T)))
    assert [frame for _, frame in out.deliver] == [
        Numbers(2, (stamp(U, 1),)),
        Numbers(3, (stamp(T, 2),)),
    ]


def test_a_frame_of_requests_is_one_fact_and_so_is_a_gap_that_confirms() -> None:
    bench = Bench()
    assert len(bench.send(ALICE, NumberRequest(1, (T, U, T))).persist) == 1
    out = bench.send(ALICE, NumberRequest(9, (T,), 2))
    assert len(out.persist) == 1
    assert [frame for _, frame in out.deliver] == [RequestsSettled(2)]


def test_what_becomes_of_numbers() -> None:
    bench = Bench(line=("a",))
    bench.send(ALICE, ChangeRequest("x", 1, (0, 1)))
    bench.send(ALICE, NumberRequest(1, (0, 1, 0, 0)))
    assert bench.answer(ALICE, GiveBack((3,))) == RequestsSettled(0, (3,))
    assert bench.answer(ALICE, Confirm(3)) == RequestsSettled(3)
    assert bench.answer(ALICE, Confirm(2)) == RequestsSettled(3)
    assert bench.answer(BOB, AskNumbers(0, (1, 2, 3, 4, LAST_NUMBER))) == Told(
        0,
        (
            (1, PUBLISHED, stamp(0, 1)),
            (2, VOID, stamp(0, 2, 1, 1)),
            (3, OPEN, stamp(0, 3)),
            (4, UNGIVEN, None),
            (LAST_NUMBER, UNGIVEN, None),
        ),
    )
    assert bench.answer(BOB, HowFar((0, 1))) == Far({0: 3, 1: 1})


def test_a_number_is_void_after_a_lease_and_its_publisher_is_told() -> None:
    bench = Bench(lease_s=8.0, keep_s=100.0)
    bench.send(ALICE, NumberRequest(1, (T, T)))
    assert not bench.sweep(7.9).persist
    assert bench.sweep(0.2).persist
    assert bench.answer(BOB, AskNumbers(T, (1,))).answers[0][1] == VOID
    assert bench.answer(ALICE, NumberRequest(1, (T, T))) == Numbers(1, (None, None))
    assert bench.answer(ALICE, Confirm(1)) == RequestsSettled(1, (1,))
    assert bench.answer(ALICE, GiveBack((2,))) == RequestsSettled(1, (2,))
    assert bench.answer(ALICE, Confirm(2)) == RequestsSettled(2)


def test_a_site_that_starts_again_gives_everybody_a_lease() -> None:
    bench = Bench(lease_s=8.0, keep_s=8.0)
    bench.send(ALICE, NumberRequest(1, (T,)))
    bench.send(ALICE, ChangeRequest("x", 1, (T,)))
    bench.now += 1000.0
    bench.again()
    bench.send(ALICE, OrderHello(PROTOCOL_VERSION, "alice"))
    assert not bench.sweep(7.9).persist
    assert len(bench.sweep(0.2).persist) == 2


def test_an_instance_has_a_limit_of_unsettled_requests() -> None:
    bench = Bench()
    done = 0
    while done < MAX_UNSETTLED:
        bench.core.step(Received(ALICE, NumberRequest(done + 1, (T,) * 4096)), bench.now)
        done += 4096
    out = bench.send(ALICE, NumberRequest(done + 1, (T,)))
    assert [close.error for close in out.close] == ["ProtocolError"]


def test_an_instance_is_forgotten_after_everything_is_settled_and_goes_on() -> None:
    bench = Bench(lease_s=8.0, keep_s=8.0)
    bench.send(ALICE, NumberRequest(1, (T, T, T), 0))
    bench.send(ALICE, Confirm(1))
    bench.step(Closed(ALICE))
    bench.sweep(9.0)
    bench.sweep(9.0)
    assert "alice" not in bench.core.site.instances
    assert "alice" not in bench.core.clients
    welcome = bench.answer(7, OrderHello(PROTOCOL_VERSION, "alice"))
    assert welcome.answered == 0
    assert bench.answer(7, Confirm(3)) == RequestsSettled(3)
    assert bench.answer(7, GiveBack((3,))) == RequestsSettled(0)
    assert bench.answer(7, NumberRequest(4, (T,), 3)) == Numbers(4, (stamp(T, 4),))
    bench.again()


def test_the_history_forgets_the_oldest_numbers() -> None:
    bench = Bench(line=("a",), remembered=2)
    bench.send(ALICE, NumberRequest(1, (0, 0, 0, 0)))
    bench.send(ALICE, Confirm(3))
    states = [state for _, state, _ in bench.answer(BOB, AskNumbers(0, (1, 2, 3, 4))).answers]
    assert states == [FORGOTTEN, PUBLISHED, PUBLISHED, OPEN]
    bench.again()


def test_the_history_is_limited_by_the_entries_of_its_timestamps() -> None:
    bench = Bench(line=("a",), remembered_entries=4)
    bench.send(ALICE, ChangeRequest("x", 1, (0, 1)))
    bench.send(ALICE, NumberRequest(1, (0, 1, 0, 1)))
    bench.send(ALICE, Confirm(4))
    assert [row[1] for row in bench.answer(BOB, AskNumbers(0, (1, 2))).answers] == [
        FORGOTTEN,
        PUBLISHED,
    ]
    assert [row[1] for row in bench.answer(BOB, AskNumbers(1, (1, 2))).answers] == [
        FORGOTTEN,
        PUBLISHED,
    ]
    bench.again()


def test_a_void_number_may_leave_the_history_before_its_publisher_knows() -> None:
    bench = Bench(line=("a",), remembered=1, lease_s=8.0, keep_s=99.0)
    bench.send(ALICE, NumberRequest(1, (0, 0)))
    bench.sweep(9.0)
    half = DurableSite(bench.config)
    half.restore(list(bench.core.durable.parts()))
    half.validate()
    assert half.digest() == bench.core.durable.digest()
    assert bench.answer(ALICE, Confirm(2)) == RequestsSettled(2, (1, 2))


def test_answers_are_split_so_that_they_fit_into_a_frame() -> None:
    site = Site(0, 1, PAIRS)
    out = effects()
    rows = [(0, stamp(1, number)) for number in range(1, FRAME_STAMPS + 2)]
    site._send_up(0, rows, out)
    assert [len(passage.stamps) for _, passage in out.sends] == [FRAME_STAMPS, 1]  # type: ignore[union-attr]
    wide = stamp(1, 1, *range(FRAME_ENTRIES // 2 + 2))
    out = effects()
    site._send_up(0, [(0, wide)] * 3, out)
    assert [len(passage.stamps) for _, passage in out.sends] == [1, 1, 1]  # type: ignore[union-attr]


# ── streams ──────────────────────────────────────────────────────────────────────────────


def test_a_change_is_answered_with_its_cut_again_and_again() -> None:
    bench = Bench(line=("a",))
    bench.send(BOB, NumberRequest(1, (0, 0, 1)))
    made = Changed("x", 1, {0: 2, 1: 1})
    assert bench.answer(ALICE, ChangeRequest("x", 1, (0, 1))) == made
    bench.send(BOB, NumberRequest(4, (0,)))
    facts = len(bench.facts)
    assert bench.answer(ALICE, ChangeRequest("x", 1, (0, 1))) == made
    assert len(bench.facts) == facts
    assert bench.answer(ALICE, ChangeRequest("x", 2, (0,))) == Changed("x", 2, {0: 3})
    assert not bench.send(ALICE, ChangeRequest("x", 1, (0, 1))).deliver


def test_a_stream_that_nobody_keeps_expires_and_its_topics_are_told() -> None:
    bench = Bench(line=("a",), lease_s=8.0, keep_s=8.0)
    for name in ("x", "y"):
        bench.send(ALICE, ChangeRequest(name, 1, (0, 1)))
    bench.now += 5.0
    assert bench.answer(ALICE, Keep(("y", "z"))) == StreamsKept(("z",))
    bench.sweep(4.0)
    assert bench.answer(ALICE, Keep(("x", "y"))) == StreamsKept(("x",))
    assert bench.answer(ALICE, ChangeRequest("x", 2, (0,))).error == "Expired"
    assert bench.answer(BOB, NumberRequest(1, (0, 0, 1))).stamps == (
        stamp(0, 1, gone=("x",)),
        stamp(0, 2),
        stamp(1, 1, 0, 2, gone=("x",)),
    )


def test_a_stream_that_ends_is_not_told_and_is_forgotten_later() -> None:
    bench = Bench(line=("a",), lease_s=8.0, keep_s=8.0)
    bench.send(ALICE, ChangeRequest("x", 1, (0, 1)))
    assert bench.answer(ALICE, ChangeRequest("x", 2, ())) == Changed("x", 2)
    assert bench.answer(ALICE, ChangeRequest("x", 2, ())) == Changed("x", 2)
    assert bench.answer(ALICE, ChangeRequest("x", 3, (0,))).error == "Expired"
    assert not bench.core.site.groups.noted
    bench.sweep(9.0)
    assert not bench.core.site.homes
    assert bench.answer(BOB, NumberRequest(1, (0, 1))).stamps == (stamp(0, 1), stamp(1, 1))


def test_a_stream_has_a_limit_of_topics() -> None:
    bench = Bench()
    many = tuple(range(0, 2 * MAX_TOPICS_OF_STREAM + 2, 2))
    assert bench.answer(ALICE, ChangeRequest("x", 1, many)).error == "NotOffered"
    assert not bench.core.site.homes


def test_a_client_has_a_limit_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motet.sequencer.core.MAX_STREAMS_OF_CLIENT", 3)
    bench = Bench(line=("a",))
    for name in ("x", "y", "z"):
        assert not bench.answer(ALICE, ChangeRequest(name, 1, (0,))).error
    refused = bench.answer(ALICE, ChangeRequest("more", 1, (0,)))
    assert (refused.error, "at most 3 streams" in refused.text) == ("NotOffered", True)
    assert not bench.answer(BOB, ChangeRequest("of bob", 1, (0,))).error
    assert not bench.answer(ALICE, ChangeRequest("x", 2, ())).error
    assert not bench.answer(ALICE, ChangeRequest("more", 1, (0,))).error, "one has ended"
    assert bench.answer(ALICE, ChangeRequest("even more", 1, (0,))).error == "NotOffered"


def test_in_pairs_the_limit_counts_what_a_stream_ever_had() -> None:
    bench = Bench(line=("a",), mode=PAIRS)
    bench.send(ALICE, TopicQuery(tuple(f"t{each}" for each in range(MAX_TOPICS_OF_STREAM))))
    assert not bench.answer(ALICE, ChangeRequest("x", 1, tuple(range(600)))).error
    assert not bench.answer(ALICE, ChangeRequest("x", 2, (0,))).error
    late = tuple(range(600, MAX_TOPICS_OF_STREAM + 1))
    assert bench.answer(ALICE, ChangeRequest("x", 3, late)).error == "NotOffered"
    assert bench.core.site.homes["x"].done == 2


# ── lines of sites ───────────────────────────────────────────────────────────────────────


class Line:
    """Cores of a whole line; frames travel at once, unless a site is away."""

    def __init__(self, *names: str, **settings: Any) -> None:
        placement = tuple((f"{name}*", name) for name in names)
        self.configs = {
            name: SiteConfig(name, names, placement, incarnation=7, **settings) for name in names
        }
        self.cores = {name: SiteCore(config) for name, config in self.configs.items()}
        self.facts: dict[str, list[Fact]] = {name: [] for name in names}
        self.answers: list[Any] = []
        self.closes: list[Close] = []
        self._ends: dict[tuple[str, int], tuple[str, int]] = {}
        self._count = 10
        self._waiting: deque[tuple[str, int, Frame]] = deque()

    def step(self, name: str, given: Any) -> Output:
        out = self.cores[name].step(given, 1.0)
        self.facts[name] += out.persist
        for number, frame in out.send:
            if (name, number) in self._ends:
                self._waiting.append((*self._ends[name, number], frame))
        self.answers += [frame for _, frame in out.deliver]
        self.closes += out.close
        return out

    def connect(self, one: str, other: str) -> None:
        self._count += 2
        mine, theirs = (one, self._count), (other, self._count + 1)
        self._ends[mine], self._ends[theirs] = theirs, mine
        self.step(one, Dialled(self._count, other))
        self.run()

    def run(self) -> None:
        while self._waiting:
            name, number, frame = self._waiting.popleft()
            self.step(name, Received(number, frame))
        for core in self.cores.values():
            core.validate()

    def send(self, name: str, frame: Frame, connection: int = 1) -> list[Any]:
        self.answers = []
        self.step(name, Received(connection, frame))
        self.run()
        return self.answers


def line_of(*names: str, connected: bool = True, **settings: Any) -> Line:
    """Topics are 0, 1, … by the position of their site; alice is connected to all."""
    line = Line(*names, **settings)
    for name in names:
        line.send(name, OrderHello(PROTOCOL_VERSION, "alice"))
        line.send(name, TopicQuery((f"{name}.1",)))
    if connected:
        for at, name in enumerate(names):
            for other in names[at + 1 :]:
                line.connect(name, other)
    return line


def test_a_timestamp_goes_up_the_line_and_each_site_adds_its_entries() -> None:
    line = line_of("a", "b", "c")
    line.send("a", ChangeRequest("x", 1, (0, 1, 2)))
    assert line.send("c", NumberRequest(1, (2,))) == [Numbers(1, (stamp(2, 1),))]
    assert line.send("b", NumberRequest(1, (1,))) == [Numbers(1, (stamp(1, 1, 2, 1),))]
    assert line.send("a", NumberRequest(1, (0,))) == [Numbers(1, (stamp(0, 1, 1, 1, 2, 1),))]
    assert line.send("c", NumberRequest(2, (2,))) == [Numbers(2, (stamp(2, 2, 0, 1, 1, 1),))]
    assert all(
        not ledger.outbox
        for core in line.cores.values()
        for ledger in core.durable.ledgers.values()
    )


def test_requests_of_one_frame_keep_their_sequence_whatever_their_groups() -> None:
    line = line_of("a", "b", "c")
    line.send("a", TopicQuery(("a.2", "a.3")))
    line.send("a", ChangeRequest("x", 1, (0, 2)))
    line.send("a", ChangeRequest("y", 1, (3, 1)))
    out = line.step("a", Received(1, NumberRequest(1, (0, 3, 6, 0))))
    (control,) = [frame for _, frame in out.send]
    assert isinstance(control, Control)
    (passage,) = control.messages
    assert isinstance(passage, StampPassage)
    assert (passage.lasts, [each.topic for each in passage.stamps]) == ((2, 1, 2), [0, 3, 0])
    line.answers = []
    line.run()
    assert sorted(frame.first for frame in line.answers) == [1, 2, 4]


def test_messages_wait_for_a_site_that_was_never_met() -> None:
    line = line_of("a", "b", connected=False)
    assert not line.send("a", ChangeRequest("x", 1, (0, 1)))
    assert not line.send("a", NumberRequest(1, (0,)))
    core = line.cores["a"]
    line.cores["a"] = SiteCore(line.configs["a"], core.durable)
    line.send("a", OrderHello(PROTOCOL_VERSION, "alice"))
    line.answers = []
    line.connect("b", "a")
    assert line.answers == [Changed("x", 1, {0: 0, 1: 0}), Numbers(1, (stamp(0, 1),))]


def test_a_number_given_back_on_its_way_is_void_when_it_is_back() -> None:
    line = line_of("a", "b", connected=False)
    line.send("a", ChangeRequest("x", 1, (0, 1)))
    line.send("a", NumberRequest(1, (0,)))
    assert line.send("a", GiveBack((1,))) == [RequestsSettled(0, (1,))]
    assert line.send("a", Confirm(1)) == [RequestsSettled(1)]
    assert line.send("a", AskNumbers(0, (1,))) == [Told(0, ((1, OPEN, None),))]
    line.connect("a", "b")
    assert line.send("a", AskNumbers(0, (1,))) == [Told(0, ((1, VOID, stamp(0, 1)),))]


def test_a_home_may_be_any_site() -> None:
    line = line_of("a", "b", "c")
    assert line.send("c", ChangeRequest("x", 1, (0, 1))) == [Changed("x", 1, {0: 0, 1: 0})]
    assert list(line.cores["c"].site.homes) == ["x"]
    assert [list(core.site.groups.noted) for core in line.cores.values()] == [["x"], ["x"], []]


def test_ids_that_no_site_has_given_out_are_not_noted() -> None:
    line = line_of("a", "b")
    assert line.send("a", ChangeRequest("x", 1, (0, 50, 51))) == [
        Changed("x", 1, {0: 0, 50: 0, 51: 0})
    ]
    assert line.cores["a"].site.groups.noted == {"x": (0, 51)}
    assert line.cores["b"].site.groups.noted == {}


def test_a_site_of_another_line_is_refused() -> None:
    bench = Bench()
    out = bench.send(LINK, LinkHello(PROTOCOL_VERSION, "b", 5, 0, 0, root="pairs|b,a||b"))
    assert out.close[0].error == "ProtocolError"
    assert "same line" in out.close[0].text
    out = bench.send(LINK, LinkHello(PROTOCOL_VERSION, "z", 5, 0, 0, root=bench.config.identity))
    assert out.close[0].error == "UnknownBroker"
    out = bench.send(LINK, LinkHello(99, "b", 5, 0, 0, root=bench.config.identity))
    assert out.close[0].error == "VersionError"
    out = bench.step(Dialled(LINK, "z"))
    assert [close.connection for close in out.close] == [LINK]


def test_a_site_that_lost_its_state_is_refused_and_stops() -> None:
    line = line_of("a", "b")
    line.send("a", ChangeRequest("x", 1, (0, 1)))
    config = SiteConfig("b", ("a", "b"), line.configs["b"].placement, incarnation=8)
    line.cores["b"] = SiteCore(config)
    line.closes = []
    line.connect("a", "b")
    assert [close.error for close in line.closes if close.error] == ["StaleState"]
    assert "found the line anew" in line.closes[-1].text


def test_a_site_that_runs_on_an_older_copy_is_refused_and_stops() -> None:
    line = line_of("a", "b")
    older = list(line.facts["a"])
    line.send("a", ChangeRequest("x", 1, (0, 1)))
    durable = DurableSite(line.configs["a"])
    durable.replay(older)
    line.cores["a"] = SiteCore(line.configs["a"], durable)
    line.closes = []
    line.connect("a", "b")
    assert [close.error for close in line.closes if close.error] == ["StaleState"]


def test_a_site_that_hears_of_messages_it_never_sent_stops() -> None:
    line = line_of("a", "b")
    a = line.cores["a"]
    a.step(Dialled(99, "b"), 1.0)
    hello = LinkHello(PROTOCOL_VERSION, "b", 7, 7, 50, root=line.configs["a"].identity)
    with pytest.raises(StaleState):
        a.step(Received(99, hello), 1.0)


SENSELESS = [
    StampPassage(1, (0,), (stamp(1, 1),)),
    StampPassage(0, (0,), (stamp(0, 1),)),
    StampPassage(0, (1, 1), (stamp(0, 1),)),
    StampPassage(0, (2,), (stamp(0, 1),)),
    StampPassage(0, (1,), (stamp(1, 1),)),
    StampPassage(0, (1,), (stamp(2**40, 1),)),
    Stamped((stamp(99, 1),)),
    Stamped((stamp(0, 1),)),
    ChangePassage("x", 5, 1, (1,), (1,)),
    ChangePassage("x", 0, 1, (0,), (0,)),
    ChangePassage("x", 0, 1, (), ()),
    ChangePassage("x", 0, 1, (0, 1), (0, 1), {2**40: 1}),
]


@pytest.mark.parametrize("message", SENSELESS, ids=lambda each: f"{each!r:.60}")
def test_a_site_that_sends_nonsense_is_expelled(message: Any) -> None:
    line = line_of("a", "b")
    b = line.cores["b"]
    connection = b.links["a"].soft.connection
    before = b.durable.digest()
    first = b.durable.ledgers["a"].record.received + 1
    out = b.step(Received(connection, Control(first, (message,))), 1.0)
    assert [close.error for close in out.close] == ["ProtocolError"]
    assert not out.persist
    assert b.durable.digest() == before


def test_an_answer_to_an_unknown_change_is_ignored() -> None:
    line = line_of("a", "b")
    a = line.cores["a"]
    connection = a.links["b"].soft.connection
    first = a.durable.ledgers["b"].record.received + 1
    out = a.step(Received(connection, Control(first, (ChangeMade("x", 1, {}),))), 1.0)
    assert not out.deliver
    assert not out.close
    a.validate()


def test_control_is_acknowledged_and_taken_once() -> None:
    line = line_of("a", "b")
    b = line.cores["b"]
    connection = b.links["a"].soft.connection
    first = b.durable.ledgers["a"].record.received + 1
    frame = Control(first, (StampPassage(0, (1,), (stamp(0, 1),)),))
    for facts in (1, 0):
        out = b.step(Received(connection, frame), 1.0)
        assert len(out.persist) == facts
        assert (connection, ControlAck(first)) in out.send


def test_a_line_is_for_good() -> None:
    core = line_of("a", "b").cores["a"]
    assert core.objection_to(("b",)) is None
    objection = core.objection_to(("b", "c"))
    assert objection is not None
    assert objection.error == "MisuseError"


def test_the_status_names_what_operators_look_for() -> None:
    line = line_of("a", "b")
    line.send("a", ChangeRequest("x", 1, (0, 1)))
    line.send("a", NumberRequest(1, (0, 0)))
    status = line.cores["a"].status()
    assert (status["site"], status["numbers"], status["streams"]) == ("a", 2, 1)
    assert (status["unsettled"], status["topics_above"]) == (2, 1)
    assert status["links"]["b"]["phase"] == "up"


def test_the_status_counts_no_stream_that_has_ended() -> None:
    line = line_of("a")
    line.send("a", ChangeRequest("x", 1, (0,)))
    line.send("a", ChangeRequest("y", 1, (0,)))
    assert line.cores["a"].status()["streams"] == 2
    line.send("a", ChangeRequest("x", 2, ()))
    assert line.cores["a"].status()["streams"] == 1
