"""Whatever the connection does, every request and every publication meets one fate.

A model broker answers, forgets, refuses, disappears and sends its client away at hypothesis's will.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import Raw

from motet.client.session.machine import ClientMachine
from motet.client.session.state import Resolved, Settled
from motet.model import Filter
from motet.protocol.frames import Frame
from motet.protocol.mobility.messages import ArrivalHello, Moved, MoveRefusal, MoveRequest
from motet.protocol.session.messages import (
    ClientHello,
    Done,
    Failed,
    Farewell,
    Goodbye,
    Publish,
    Published,
    Refusal,
    Request,
    Welcome,
)

F = Filter.parse("x > 1")


class ModelBroker:
    """One session at a time, as `protocol.session` promises it. If the session moves, it becomes
    the broker of another name."""

    def __init__(self) -> None:
        self.name = "B"
        self.issued = 0
        self.epoch = ""
        self.requests = 0
        self.unanswered: list[int] = []
        self.answered: dict[int, Frame] = {}
        self.published = 0
        self.forgot = False
        self.accepted: dict[bool, list[int]] = {True: [], False: []}
        """Ordinals, by kind."""
        self.unlogged: list[int] = []
        """Sure ones that would be lost if the broker died now."""
        self.logged = 0
        """The number of the last sure one in the log."""

    def welcome(self, hello: ClientHello, forget: bool) -> Welcome:
        resumed = bool(self.epoch) and hello.resume == self.epoch and not forget
        self.sync()  # a welcome settles publications, too
        if not resumed:
            self.issued += 1
            self.epoch = f"B-{self.issued}"
            self.requests, self.published, self.logged = 0, 0, 0
            self.forgot = False
            self.unanswered, self.answered, self.unlogged = [], {}, []
        return Welcome(self.name, self.epoch, resumed, self.published, 30.0, forgot=self.forgot)

    def take(self, frame: Frame) -> list[Frame]:
        if isinstance(frame, Publish):
            self.forgot = False
            for sequence, body in enumerate(frame.bodies, frame.first):
                if sequence > self.published:
                    self.accepted[frame.sure].append(int(bytes(body)))
                    self.published = sequence
                    if frame.sure:
                        self.unlogged.append(sequence)
            return []
        if isinstance(frame, Goodbye | MoveRequest):
            return []
        assert isinstance(frame, Request)
        assert frame.sequence <= self.requests + 1
        if frame.sequence == self.requests + 1:
            self.requests += 1
            self.unanswered.append(frame.sequence)
        elif frame.sequence in self.answered:
            return [self.answered[frame.sequence]]
        return []

    def sync(self) -> None:
        if self.unlogged:
            self.logged = self.unlogged[-1]
            self.unlogged = []

    def die(self) -> None:
        """Only the log remains: it does not even know how many best-effort ones there were."""
        if self.unlogged:
            del self.accepted[True][-len(self.unlogged) :]
        self.unlogged = []
        self.published, self.forgot = self.logged, True


class Fates(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.client = ClientMachine("alice", window=20)
        self.broker = ModelBroker()
        self.wire: list[Frame] = []
        self.asked: set[int] = set()
        self.resolved: set[int] = set()
        self.abandoned: set[int] = set()
        self.removals: set[int] = set()
        """Answered even if nobody waits: whoever holds what they take back must hear of it."""
        self.settled = 0
        self.made = 0
        self.sure: dict[int, bool] = {}
        self.assured: set[int] = set()
        """Sure ones that were told to be accepted."""

    # ── the application ──────────────────────────────────────────────────────────────────

    @rule(kind=st.sampled_from(["advertise", "subscribe"]), wait=st.booleans())
    def ask(self, kind: str, wait: bool) -> None:
        if self.client.state != "ended":
            self.asked.add(self.client.request(kind, F, wait=wait))  # type: ignore[arg-type]

    @precondition(lambda self: self.client.requests.standing)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        operation = self.client.requests.standing[
            data.draw(st.sampled_from(list(self.client.requests.standing)))
        ]
        kind = "unadvertise" if operation.kind == "advertise" else "unsubscribe"
        handle = self.client.request(kind, target=operation.handle)  # type: ignore[arg-type]
        self.asked.add(handle)
        self.removals.add(handle)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        """Also what is resolved: its caller may be gone before he reads the answer."""
        handle = data.draw(st.sampled_from(sorted(self.asked)))
        if handle not in self.resolved | self.removals:
            self.abandoned.add(handle)
        self.client.abandon(handle)
        assert handle not in self.client.requests.standing

    @precondition(lambda self: self.client.state != "ended" and not self.client.moving.asked)
    @rule(to=st.sampled_from(["B", "C", "D"]))
    def move(self, to: str) -> None:
        self.asked.add(self.client.move(to))

    @precondition(lambda self: self.client.moving.told)
    @rule()
    def lose_patience(self) -> None:
        self.wire.clear()
        self.client.closed()
        self.client.impatient()

    @rule(count=st.integers(1, 4), sure=st.booleans())
    def publish(self, count: int, sure: bool) -> None:
        if self.client.can_publish and self.client.window.room >= count:
            ordinals = range(self.made + 1, self.made + count + 1)
            names = [Raw(str(ordinal).encode()) for ordinal in ordinals]
            assert self.client.publish(names, sure) == ordinals
            self.sure.update(dict.fromkeys(ordinals, sure))
            self.made += count

    # ── the connection ───────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.client.state == "offline")
    @rule()
    def open(self) -> None:
        self.wire.clear()
        self.client.opened()

    @precondition(lambda self: self.client.state in ("greeting", "open"))
    @rule()
    def close(self) -> None:
        self.wire.clear()
        self.client.closed()

    @precondition(lambda self: self.wire)
    @rule(count=st.integers(1, 5), forget=st.sampled_from([False, False, False, True]))
    def hear(self, count: int, forget: bool) -> None:
        """The broker reads some frames; what it answers arrives at once."""
        for _ in range(min(count, len(self.wire))):
            frame = self.wire.pop(0)
            if isinstance(frame, ClientHello | ArrivalHello):
                hello = frame if isinstance(frame, ClientHello) else frame.hello
                self.client.received(self.broker.welcome(hello, forget))
                self.collect()
            else:
                for answer in self.broker.take(frame):
                    self.client.received(answer)

    @precondition(lambda self: self.broker.unanswered)
    @rule(data=st.data(), good=st.booleans())
    def answer(self, data: st.DataObject, good: bool) -> None:
        """The answer may be lost, if nobody is connected."""
        sequence = data.draw(st.sampled_from(self.broker.unanswered))
        self.broker.unanswered.remove(sequence)
        reply = Done(sequence) if good else Failed(sequence, "NotEffective", "", ("C",))
        self.broker.answered[sequence] = reply
        if self.client.state == "open":
            self.client.received(reply)

    @precondition(lambda self: self.client.state == "open" and self.broker.published > 0)
    @rule(refuse=st.booleans())
    def acknowledge(self, refuse: bool) -> None:
        self.broker.sync()
        upto = self.broker.published
        refused = (Refusal(upto, "NotAdvertised", ""),) if refuse else ()
        self.client.received(Published(upto, refused))

    @precondition(lambda self: self.client.state in ("open", "offline") and self.broker.epoch)
    @rule()
    def restart(self) -> None:
        """The broker dies and recovers from its disk, which has no best-effort publications."""
        self.wire.clear()
        self.broker.die()
        self.client.closed()

    @precondition(lambda self: self.client.state in ("greeting", "open") and self.broker.epoch)
    @rule(to=st.sampled_from(["B", "C", "D"]))
    def send_away(self, to: str) -> None:
        """The session moves with what the log has, as it was asked for or not."""
        self.broker.sync()
        self.broker.name = to
        self.wire.clear()
        self.client.received(Moved(to, ""))
        self.client.received(Farewell("", "moved"))

    @precondition(lambda self: self.client.state == "open" and self.client.moving.asked)
    @rule(known=st.booleans())
    def refuse_move(self, known: bool) -> None:
        asked = self.client.moving.asked
        assert asked is not None
        self.client.received(MoveRefusal(asked.number if known else 1, "MoveRefused", ""))

    @precondition(lambda self: self.client.state in ("greeting", "open"))
    @rule(error=st.sampled_from(["Disconnected", "ProtocolError"]))
    def farewell(self, error: str) -> None:
        self.wire.clear()
        self.client.received(Farewell(error, ""))

    @precondition(lambda self: self.made > 15 and self.client.state == "open")
    @rule(fenced=st.booleans())
    def end(self, fenced: bool) -> None:
        if fenced:
            self.client.received(Farewell("Fenced", ""))
        else:
            self.client.goodbye()

    # ── what must hold ───────────────────────────────────────────────────────────────────

    def collect(self) -> None:
        effects = self.client.take()
        self.wire += effects.send
        for frame in effects.send:
            if isinstance(frame, Publish):
                ordinals = [int(bytes(body)) for body in frame.bodies]
                assert {self.sure[ordinal] for ordinal in ordinals} == {frame.sure}
                assert ordinals == list(range(ordinals[0], ordinals[-1] + 1))
        for told in effects.happened:
            if isinstance(told, Resolved):
                assert told.handle in self.asked
                assert told.handle not in self.resolved, "resolved twice"
                assert told.handle not in self.abandoned
                self.resolved.add(told.handle)
            elif isinstance(told, Settled):
                assert self.settled < told.upto <= self.made
                self.check_accepted(told)
                self.settled = told.upto

    def check_accepted(self, told: Settled) -> None:
        """What is told to be accepted, the broker has."""
        if told.unknown is None:
            refused = {refusal.sequence for refusal in told.refused}
            for ordinal in range(self.settled + 1, told.upto + 1):
                if ordinal not in refused:
                    assert ordinal in self.broker.accepted[self.sure[ordinal]]
                    if self.sure[ordinal]:
                        self.assured.add(ordinal)

    @invariant()
    def consistent(self) -> None:
        self.collect()
        self.client.validate()
        assert self.client.window.settled == self.settled
        for accepted in self.broker.accepted.values():
            assert accepted == sorted(set(accepted)), "doubled or out of order"
        assert self.assured <= set(self.broker.accepted[True]), "acknowledged and lost"

    def teardown(self) -> None:
        self.client.goodbye()
        self.collect()
        assert self.asked == self.resolved | self.abandoned
        assert self.settled == self.made


Fates.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestFates = Fates.TestCase
