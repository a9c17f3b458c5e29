"""Live streams that transactions hand over between subscribers, under faults.

Every stream has one handler at a time. Coordinators hand streams over, by plans and by dynamic
transactions, isolated or not; two publishers also mark some of them with an event each, which an
observer must see as one. In the end: each event of a stream went to exactly one handler, in
contiguous stretches; every broker later reports the outcome that the coordinator was told; and of
every mark the observer saw all or nothing, consecutively.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_hex

from motet.chaos.chronicle import Chronicle
from motet.chaos.plan import ChaosPlan
from motet.chaos.traffic import CONNECT_S, RETRY_S, ChaosTraffic, FrailDriver
from motet.client.client import Client
from motet.client.plan import Plan as TxPlan
from motet.client.publications import Receipt
from motet.client.session.machine import ClientMachine
from motet.client.subscription import Subscription
from motet.client.transaction import Invitation, Isolation, Outcome, Transaction
from motet.errors import Aborted, MisuseError, MotetError, NoAnswer, UnavailableError
from motet.model import Value
from motet.testing.checkers.result import CheckResult

STREAMS = 3
HANDLERS = 4
COORDINATORS = 2
PAUSE_S = 0.01
"""Between two events of a stream."""
PATIENCE_S = 6.0
"""How long a transaction may take."""
STYLES = ("plan", "plan", "serializable", "none")
DROP_S = 3.0
"""The mean time between two broken connections of clients."""
ARRIVAL_S = 60.0
POLL_S = 0.1
ROAM_S = 0.7
"""The mean time between two moves of clients, where clients move."""
MOVE_S = 5.0
SLOWER = 3
"""So much longer is the pause between two events where other clients move as well."""


@dataclass
class Hand:
    """One client: a publisher, a handler, a coordinator or the observer."""

    name: str
    home: str
    address: str
    client: Client | None = None
    driver: FrailDriver | None = None
    stretches: list[tuple[str, list[int]]] = field(default_factory=list)
    """The events it has read: per subscription, the stream and the numbers of the events."""
    readers: list[asyncio.Task[None]] = field(default_factory=list)
    is_moving: bool = False

    @property
    def own(self) -> Client:
        assert self.client is not None
        return self.client

    @property
    def broker(self) -> str:
        """Where it is."""
        return (self.client.broker if self.client is not None else "") or self.home

    async def begin(self, chronicle: Chronicle) -> None:
        while self.client is None:
            machine = ClientMachine(self.name, instance=token_hex(8))
            recorder = chronicle.recorder_of(machine)
            driver = FrailDriver([self.address], machine, recorder=recorder)
            try:
                await driver.begin(CONNECT_S)
            except UnavailableError:
                await asyncio.sleep(RETRY_S)
            else:
                self.driver, self.client = driver, Client(driver)

    def read(self, subscription: Subscription) -> None:
        self.readers.append(asyncio.ensure_future(self._read(subscription)))

    async def _read(self, subscription: Subscription) -> None:
        numbers: list[int] = []
        self.stretches.append((subscription.name, numbers))
        try:
            async for event in subscription:
                numbers.append(int(str(event["n"])))
        except MotetError:
            return  # its transaction was aborted

    async def take_part(self, invitation: Invitation, tx: Transaction) -> None:
        """Take or release a stream, as the invitation says."""
        stream = str(invitation.event["stream"])
        if invitation.event["act"] == "take":
            self.read(await tx.subscribe(wanted(stream), name=stream))
        else:
            await tx.unsubscribe(stream)


@dataclass
class HandOver:
    """One hand-over, and what its coordinator was told."""

    number: int
    stream: str
    style: str
    outcome: str = ""
    tx: str = ""
    marked: bool = False
    why: str = ""
    """The last error."""


@dataclass
class LiveStream:
    name: str
    holder: Hand
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    made: list[tuple[int, Receipt]] = field(default_factory=list)
    unknown: set[int] = field(default_factory=set)
    """Events for which it is unknown whether they were published."""


def wanted(stream: str) -> str:
    return f"kind = 'live' and of = '{stream}'"


class Hands(ChaosTraffic):
    """The traffic of the profile "transactions"."""

    def __init__(self, plan: ChaosPlan, chronicle: Chronicle, addresses: Mapping[str, str]) -> None:
        super().__init__(plan, chronicle, addresses)
        self._chance = plan.random("transactions")
        self._hands: dict[str, Hand] = {}
        self._streams: list[LiveStream] = []
        self.attempts: list[HandOver] = []
        self._stormy = 0
        """The number of attempts made before everything was at rest."""
        self._running = True
        self._work: set[asyncio.Task[None]] = set()
        self._marks: list[tuple[int, int, str]] = []
        """What the observer saw: number of the attempt, place, transaction."""
        self._pause_s = PAUSE_S * (SLOWER if plan.moves else 1)
        self._moved = CheckResult("moves")

    @property
    def at_rest(self) -> bool:
        return not self._work

    def living_at(self, broker: str) -> int:
        living = (each for each in self._hands.values() if each.client is not None)
        return sum(each.broker == broker for each in living)

    # ── beginning ────────────────────────────────────────────────────────────────────────

    async def begin(self) -> None:
        brokers = self._plan.tree.brokers
        names = [f"p{n}" for n in range(STREAMS)] + [f"h{n}" for n in range(HANDLERS)]
        names += [f"t{n}" for n in range(COORDINATORS)] + ["observer"]
        for at, name in enumerate(names):
            home = brokers[at % len(brokers)]
            hand = self._hands[name] = Hand(name, home, self._addresses[home])
            await hand.begin(self._chronicle)
        for number in range(STREAMS):
            publisher = self._hands[f"p{number}"].own
            await publisher.advertise(f"kind = 'live' and of = 's{number}'")
            await publisher.advertise(f"kind = 'mark' and by = 'p{number}'")
            await publisher.participate()
        for number in range(HANDLERS):
            handler = self._hands[f"h{number}"]
            await handler.own.participate(handler.take_part, on_started=handler.read)
            await handler.own.subscribe(f"assign = 'h{number}'")
        for number in range(COORDINATORS):
            await self._hands[f"t{number}"].own.advertise("assign is not null")
        marks = await self._hands["observer"].own.subscribe("kind = 'mark'")
        self._hands["observer"].readers.append(asyncio.ensure_future(self._observe(marks)))
        for number in range(STREAMS):
            holder = self._hands[f"h{number % HANDLERS}"]
            name = f"s{number}"
            holder.read(await holder.own.subscribe(wanted(name), name=name))
            self._streams.append(LiveStream(name, holder))

    async def _observe(self, marks: Subscription) -> None:
        async for event in marks:
            place = int(str(event["place"]))
            self._marks.append((int(str(event["n"])), place, event.transaction or ""))

    # ── traffic ──────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Runs until it is cancelled; work in progress is then completed."""
        for number, stream in enumerate(self._streams):
            self._do(self._pump(stream, self._hands[f"p{number}"].own))
        for number in range(COORDINATORS):
            self._do(self._coordinate(self._hands[f"t{number}"].own))
        if self._plan.moves:
            self._do(self._roam())
        try:
            while True:
                await asyncio.sleep(self._chance.expovariate(1.0 / DROP_S))
                hand = self._chance.choice(list(self._hands.values()))
                if hand.driver is not None:
                    self._chronicle.note(f"the connection of {hand.name} breaks")
                    self._chronicle.faults["drop_client"] += 1
                    hand.driver.drop()
        finally:
            self._running = False

    def _do(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._work.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            detail = f"a client gave up: {type(problem).__name__}: {problem}"
            self._chronicle.history.odd("invariants", detail)

    async def _pump(self, stream: LiveStream, publisher: Client) -> None:
        while self._running:
            await self._publish_next(stream, publisher)
            await asyncio.sleep(self._pause_s)

    async def _roam(self) -> None:
        """Let one client after the other move, whatever it is doing."""
        others = self._plan.tree.brokers
        moving: set[asyncio.Task[None]] = set()
        while self._running:
            await asyncio.sleep(self._chance.expovariate(1.0 / ROAM_S))
            hand = self._chance.choice(list(self._hands.values()))
            if hand.is_moving:
                continue
            to = self._chance.choice([name for name in others if name != hand.broker])
            task = asyncio.ensure_future(self._move(hand, to))
            moving.add(task)
            task.add_done_callback(moving.discard)
        await asyncio.gather(*moving)

    async def _move(self, hand: Hand, to: str) -> None:
        """A move is done, or has changed nothing; if it is unknown which, its client works on."""
        client = hand.own
        before, epoch = client.broker, client.session.epoch
        hand.is_moving = True
        try:
            await client.move(to, timeout=MOVE_S)
        except NoAnswer:
            return
        except MotetError as problem:
            self._chronicle.jot(f"{hand.name} does not move from {before} to {to}: {problem}")
            same = client.broker == before and bool(str(problem))
            told = (hand.name, problem, client.broker, before)
            self._moved.expect(same, "{} did not move ({}), and is at {}, not at {}", *told)
        else:
            self._chronicle.jot(f"{hand.name} moves from {before} to {to}")
            there = client.broker == to
            self._moved.expect(there, "{} moved to {}, and is at {}", hand.name, to, client.broker)
        finally:
            hand.is_moving = False
        same = client.session.epoch == epoch or client.session.lost_sessions > 0
        self._moved.expect(same, "{} has lost its session in a move to {}", hand.name, to)

    async def _publish_next(self, stream: LiveStream, publisher: Client) -> None:
        number = len(stream.made)
        event: dict[str, Value] = {"kind": "live", "of": stream.name, "n": number}
        stream.made.append((number, await publisher.send(event)))

    async def _coordinate(self, coordinator: Client) -> None:
        while self._running:
            await asyncio.sleep(self._chance.uniform(0.0, 0.1))
            stream = self._chance.choice(self._streams)
            if stream.turn.locked():
                continue
            style = self._chance.choice(STYLES)
            async with stream.turn:
                await self._hand_over(coordinator, stream, style)

    async def _hand_over(self, coordinator: Client, stream: LiveStream, style: str) -> None:
        old = stream.holder
        others = [h for h in self._hands.values() if h.name[0] == "h" and h is not old]
        new = self._chance.choice(others)
        attempt = HandOver(len(self.attempts), stream.name, style)
        self.attempts.append(attempt)
        if style == "plan":
            await self._by_plan(coordinator, stream.name, old, new, attempt)
        else:
            isolation: Isolation = "serializable" if style == "serializable" else "none"
            await self._by_invitation(coordinator, stream.name, old, new, isolation, attempt)
        if attempt.outcome == "committed":
            stream.holder = new
        told = f"{attempt.outcome} {attempt.why}".rstrip()
        self._chronicle.jot(f"{stream.name} goes from {old.name} to {new.name}, {style}: {told}")

    async def _by_plan(
        self, coordinator: Client, stream: str, old: Hand, new: Hand, attempt: HandOver
    ) -> None:
        """While the outcome is unknown, retry with the same key."""
        plan = TxPlan()
        ends = plan.unsubscribe(old.name, stream, after=[])
        plan.subscribe(new.name, wanted(stream), name=stream, after=[ends])
        for place, who in enumerate(("p0", "p1", "p0")):
            event: dict[str, Value] = {
                "kind": "mark",
                "by": who,
                "place": place,
                "n": attempt.number,
            }
            plan.publish(who, event)
        attempt.marked, doubtful = True, False
        while not attempt.outcome:
            try:
                key = f"k{attempt.number}"
                attempt.tx = await coordinator.execute(plan, key=key, timeout=PATIENCE_S)
                attempt.outcome = "committed"
            except (Aborted, MisuseError) as problem:
                attempt.why = f"({problem})"
                # An earlier attempt with unknown outcome may be the reason.
                attempt.outcome = "" if doubtful else "aborted"
                await asyncio.sleep(POLL_S)
            except UnavailableError:
                doubtful = True
                await asyncio.sleep(POLL_S)

    async def _by_invitation(
        self,
        coordinator: Client,
        stream: str,
        old: Hand,
        new: Hand,
        isolation: Isolation,
        attempt: HandOver,
    ) -> None:
        try:
            tx = await coordinator.transaction(isolation=isolation, timeout=PATIENCE_S)
        except MotetError as problem:
            attempt.why = f"({problem})"
            attempt.outcome = "aborted"  # no operation can have been part of it
            return
        attempt.tx = tx.id
        try:
            async with tx:
                await tx.invite({"assign": old.name, "stream": stream, "act": "leave"})
                reached = await tx.invite({"assign": new.name, "stream": stream, "act": "take"})
                if reached != 1:
                    raise Aborted(f"{reached} handlers feel meant")
            attempt.outcome = "committed"
        except MotetError as problem:
            attempt.why = f"({problem})"
            attempt.outcome = await self._outcome(coordinator, tx.id)

    async def _outcome(self, client: Client, tx: str) -> str:
        while True:
            try:
                found = await client.outcome(tx, timeout=PATIENCE_S)
            except MotetError:
                found = Outcome.IN_PROGRESS
            if found != Outcome.IN_PROGRESS:
                return found
            await asyncio.sleep(POLL_S)

    # ── the end ──────────────────────────────────────────────────────────────────────────

    async def probe(self) -> None:
        """Everything is at rest: now every transaction must commit. In the end all publications
        must be settled and delivered."""
        self._stormy = len(self.attempts)
        for number, stream in enumerate(self._streams):
            for style in STYLES[1:]:
                await self._publish_next(stream, self._hands[f"p{number}"].own)
                await self._hand_over(self._hands["t0"].own, stream, style)
            await self._publish_next(stream, self._hands[f"p{number}"].own)
        for stream, hand in zip(self._streams, self._hands.values(), strict=False):
            await hand.own.flush(timeout=ARRIVAL_S)
            for number, receipt in stream.made:
                try:
                    await receipt
                except MotetError:
                    stream.unknown.add(number)
        while self._missing():
            await asyncio.sleep(POLL_S)

    def _missing(self) -> bool:
        seen = {(name, n) for hand in self._hands.values() for name, p in hand.stretches for n in p}
        marks = {(number, place) for number, place, _ in self._marks}
        return any(
            (stream.name, number) not in seen and number not in stream.unknown
            for stream in self._streams
            for number, _ in stream.made
        ) or any(
            (attempt.number, place) not in marks
            for attempt in self.attempts
            for place in range(3)
            if attempt.marked and attempt.outcome == "committed"
        )

    async def judge(self) -> None:
        """Called while the brokers run: they must report the outcomes."""
        self._chronicle.verdicts += [
            self._judge_streams(),
            self._judge_marks(),
            await self._judge_outcomes(),
            self._moved,
        ]
        told = [attempt.outcome for attempt in self.attempts]
        self._chronicle.transactions = {
            "begun": len(told),
            "committed": told.count("committed"),
            "aborted": len(told) - told.count("committed"),
            "by_plan": sum(attempt.style == "plan" for attempt in self.attempts),
            "handed_over_events": sum(len(stream.made) for stream in self._streams),
            "marks": len(self._marks),
        }

    def _judge_streams(self) -> CheckResult:
        verdict = CheckResult("hand-over")
        for stream in self._streams:
            count: dict[int, int] = {}
            for hand in self._hands.values():
                for name, numbers in hand.stretches:
                    if name != stream.name or not numbers:
                        continue
                    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
                    text = "{} has {} of {}, which is not one stretch"
                    verdict.expect(whole or bool(stream.unknown), text, hand.name, numbers, name)
                    for number in numbers:
                        count[number] = count.get(number, 0) + 1
            for number, _ in stream.made:
                most = 1 if number not in stream.unknown or count.get(number) else 0
                text = "event {} of {} came {} times"
                times = count.get(number, 0)
                verdict.expect(times == most, text, number, stream.name, times)
        return verdict

    def _judge_marks(self) -> CheckResult:
        verdict = CheckResult("together")
        at = 0
        seen: dict[int, str] = {}
        while at < len(self._marks):
            number, _, tx = self._marks[at]
            places = [m[1] for m in self._marks[at : at + 3] if m[0] == number]
            text = "of attempt {} the observer saw {} in a row"
            verdict.expect(places == [0, 1, 2] and number not in seen, text, number, places)
            seen[number] = tx
            at += max(1, len(places))
        for attempt in self.attempts:
            if attempt.marked:
                committed = attempt.outcome == "committed"
                same = seen.get(attempt.number) == (attempt.tx if committed else None)
                text = "attempt {} is {} as {}, and the observer saw {}"
                verdict.expect(same, text, *_of(attempt), seen.get(attempt.number))
        return verdict

    async def _judge_outcomes(self) -> CheckResult:
        verdict = CheckResult("outcomes")
        for attempt in self.attempts[self._stormy :]:
            text = "attempt {} is {} as {}, though nothing was broken any more"
            verdict.expect(attempt.outcome == "committed", text, *_of(attempt))
        askers = {hand.broker: hand.own for hand in self._hands.values()}
        for attempt in self.attempts:
            if not attempt.tx or (attempt.style == "plan" and attempt.outcome != "committed"):
                continue
            client = self._chance.choice(list(askers.values()))
            found = await self._outcome(client, attempt.tx)
            same = (found == "committed") == (attempt.outcome == "committed")
            text = "attempt {} is {} as {}, but {} for " + str(client.broker)
            verdict.expect(same, text, *_of(attempt), found)
        return verdict

    async def leave(self) -> None:
        """Close all clients: no state of them may remain at any broker."""
        for hand in self._hands.values():
            if hand.client is not None:
                await hand.client.close()
                hand.client = None

    async def pack_up(self) -> None:
        self._running = False
        tasks = [*self._work, *(task for hand in self._hands.values() for task in hand.readers)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for hand in self._hands.values():
            if hand.client is not None:
                await hand.client.close(timeout=POLL_S)


def _of(attempt: HandOver) -> tuple[int, str, str]:
    return attempt.number, attempt.outcome, attempt.tx
