"""Exactly-once events in one broker: its own pubend, and the streams of all others.

Soft code. What a client publishes gets ticks here and goes to the pubend's log (`Output.log`);
when the driver reports that it is durable (`Logged`), it enters the stream and the publisher is
told. After a restart the log gives back what is needed (`Remembered`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Raw

from motet.broker import facts
from motet.broker.interests import Interests
from motet.broker.pending import Pending, runs_of, silence_upto
from motet.broker.total_order import Reserve, TotalOrder
from motet.errors import InvariantError
from motet.model import OpId
from motet.model.ticks import LAST_TICK, TICKS_PER_S
from motet.protocol.contract import Logged, LogRead, LogRun, LogStart, Output
from motet.protocol.delivery.curiosity import Liveness
from motet.protocol.delivery.machine import DeliveryMachine
from motet.protocol.delivery.messages import Delivered, DeliveryFrame
from motet.protocol.delivery.spans import Record, StartRecord
from motet.protocol.delivery.state import Effects, Limits
from motet.protocol.delivery.tally import Tally
from motet.protocol.publication import Publication
from motet.protocol.routing.joins import FARTHEST
from motet.protocol.routing.starts import broker_of_pubend
from motet.protocol.session.messages import ClientHello, HowFar, Refusal, Request, SubscribeRequest
from motet.protocol.session.state import Session

if TYPE_CHECKING:
    from motet.broker.consequences import Consequences
    from motet.broker.core import BrokerCore


class Remembered(NamedTuple):
    """What the pubend's log knows after a restart."""

    last_tick: int = 0
    published: Mapping[tuple[str, str], int] = {}
    """By client and epoch, the last sequence."""
    skipped: Mapping[tuple[str, str], tuple[int, ...]] = {}
    """By client and epoch, lower sequences that never came to the log: if their events were to
    arrive exactly once, they were refused."""
    destroyed_upto: int = 0
    """The log up to this tick is gone: what is not known here may have been in it."""


class Streams:
    def __init__(
        self,
        core: BrokerCore,
        liveness: Liveness | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._core = core
        self._interests = Interests(core.durable.routing.state, core.links, core.router)
        self.machine = DeliveryMachine(self._interests, liveness, limits)
        self.machine.durables.reach = self._reach
        self.tally = Tally()
        self.last_tick = 0
        self._appended = 0
        """Records that this life has given to the log."""
        self._pending: deque[Pending] = deque()
        self._last_ticks: dict[tuple[str, str], int] = {}
        """By client and epoch, of what they have published; at the latest, if before this life."""
        self._retiring: dict[OpId, int] = {}
        """Retired advertisements, each with the last tick that was published under it."""
        self.total_order = TotalOrder(core.durable.routing.state)
        self._reserve = Reserve(core.durable.reserved)

    @property
    def pubend(self) -> str:
        return self._core.durable.routing.state.hosted

    # ── life ─────────────────────────────────────────────────────────────────────────────

    def begin(self, remembered: Remembered, out: Output, now: float) -> None:
        """The first thing in a broker's life; what must be started again is."""
        core = self._core
        state = core.durable.routing.state
        self._last_ticks = dict.fromkeys(remembered.published, remembered.last_tick)
        self._reserve = Reserve(core.durable.reserved)
        self.last_tick = max(remembered.last_tick, state.next_tick - 1, core.durable.reserved)
        if not state.hosted:
            config = core.config
            core._journal(facts.PubendFounded(f"{config.name}.{config.incarnation}"), out, now)
        effects = Effects()
        starts = sorted((e.start, e.id) for e in state.subscriptions if e.start)
        records = tuple(StartRecord(tick, op) for tick, op in starts)
        self.machine.host(self.pubend, self.last_tick, now, effects, records)
        for pubend, floor in core.durable.floors.items():
            self.machine.restore(pubend, floor)
        for session in core.durable.sessions:
            if session.durable:
                self.machine.durables.recall(session.client, session.cursors)
        for op, known in state.starts.items():
            for pubend, tick in known.items():
                self._start(op, pubend, tick, effects, now)
        self._look_for_pubends(effects, now)
        self._carry(effects, out, now)
        self._retire(list(state.retired), out, now)
        for over in list(self._last_ticks):
            self._forget(over, out)

    def _start(self, op: OpId, pubend: str, tick: int, effects: Effects, now: float) -> None:
        self.machine.start(op.client, op, pubend, tick, now, effects)
        session = self._core.durable.sessions.current(op.client, op.epoch)
        if session is not None and pubend in (done := session.done.get(op.sequence, {})):
            self.machine.durables.done(op.client, op.sequence, pubend, done[pubend])

    def _reach(self, op: OpId, pubend: str) -> int | None:
        session = self._core.durable.sessions.current(op.client, op.epoch)
        wanted = session.since.get(op.sequence) if session is not None else None
        return wanted.get(pubend, wanted.get("")) if wanted else None

    def done(self, session: Session, done: Mapping[int, Mapping[str, int]]) -> None:
        """Single subscriptions of a client are further than the client is."""
        for sequence, ticks in done.items():
            for pubend, tick in ticks.items():
                self.machine.durables.done(session.client, sequence, pubend, tick)

    def objection(self, client: str, request: Request) -> tuple[str, str]:
        """Why a subscription cannot reach into the past, if it wants to: an error, and its text."""
        if not isinstance(request, SubscribeRequest) or not request.since:
            return ("", "")
        if not self.pubend:
            text = f"{self._core.config.name} does not deliver exactly once, and keeps no past"
            return ("NotOffered", text)
        session = self._core.durable.sessions.get(client)
        begun = self.machine.durables.begun(client)
        known = begun if session is None else {**session.cursors, **begun}
        for pubend, tick in known.items():
            since = request.since.get(pubend, request.since.get("", tick))
            if since < tick:
                text = (
                    f"{client} has read {pubend} up to tick {tick}, so a subscription cannot "
                    "reach back there: make those that do before anything is read, or take a "
                    "client of its own for it"
                )
                return ("TooLate", text)
        return ("", "")

    # ── publishing ───────────────────────────────────────────────────────────────────────

    def publish(
        self,
        client: str,
        epoch: str,
        first: int,
        bodies: list[Raw],
        refused: tuple[Refusal, ...],
        out: Output,
        now: float,
    ) -> None:
        """Accepted events of a client, numbered from `first` but for the refused ones."""
        if not bodies:
            upto = first + len(refused) - 1
            if not self.follow(client, epoch, upto, refused):
                self._core.settled(client, epoch, upto, refused, out)
            return
        tick = self.next_tick(now)
        upto = first + len(bodies) + len(refused) - 1
        self.last_tick = self._last_ticks[client, epoch] = tick + len(bodies) - 1
        if not refused:  # nearly always: one run, and no number is looked at
            batch = [Publication(client, number, body) for number, body in enumerate(bodies, first)]
            self._appended += 1
            out.log.append(LogRun(tick, client, epoch, first, bodies))
        else:
            wrong = {each.sequence for each in refused}
            numbers = [number for number in range(first, upto + 1) if number not in wrong]
            batch = [Publication(client, n, b) for n, b in zip(numbers, bodies, strict=True)]
            for begin, end in runs_of(numbers):
                self._appended += 1
                part = bodies[begin:end]
                out.log.append(LogRun(tick + begin, client, epoch, numbers[begin], part))
        self._pending.append(Pending(self._appended, client, epoch, upto, refused, tick, batch))

    def follow(self, client: str, epoch: str, upto: int, refused: tuple[Refusal, ...]) -> bool:
        """Best-effort events are answered behind sure ones before them; false: at once."""
        if not any(each.client == client for each in self._pending):
            return False
        self._pending.append(Pending(self._appended, client, epoch, upto, refused, 0, []))
        return True

    def start_tick(self, now: float) -> int:
        """Where subscriptions start that come now; 0 if they start nowhere here."""
        return self.next_tick(now) if self.pubend else 0

    def next_tick(self, now: float) -> int:
        """What the next event or start here will have."""
        promised = self._core.durable.routing.state.next_tick
        return max(self.last_tick + 1, promised, int(now * TICKS_PER_S))

    def _write_start(self, tick: int, op: OpId, out: Output) -> None:
        """The journal has it; the log shows it to those who read the stream."""
        self.last_tick = max(self.last_tick, tick)
        self._appended += 1
        out.log.append(LogStart(tick, op))
        self._pending.append(Pending(self._appended, "", "", 0, (), tick, [], op))

    def logged(self, news: Logged, out: Output, now: float) -> None:
        """Our log has made records durable: they are published."""
        ticks: list[int] = []
        batch: list[Publication] = []
        records: list[Record] = []
        answers: dict[str, Pending] = {}
        refusals: dict[str, tuple[Refusal, ...]] = {}
        silent = 0
        pending = self._pending
        while pending and pending[0].number <= news.records:
            each = pending.popleft()
            if not each.client and each.start is None:
                silent = each.first_tick
                continue
            if each.start is not None:
                records.append(StartRecord(each.first_tick, each.start))
                continue
            if each.batch:
                ticks.extend(range(each.first_tick, each.first_tick + len(each.batch)))
                batch.extend(each.batch)
            answers[each.client] = each
            if each.refused:
                refusals[each.client] = refusals.get(each.client, ()) + each.refused
        effects = Effects()
        if ticks or records:
            self.machine.published(self.pubend, ticks, batch, now, effects, tuple(records))
        self._carry(effects, out, now)
        if silent:
            self._advance(silent, out, now)
        if self._retiring:
            self._let_go(out, now)
            # Only now can those be acknowledged that were on their way into the log.
            if ticks and any(ticks[0] <= tick <= ticks[-1] for tick in self._retiring.values()):
                self._ask_for_acks(out, now)
        for client, last in answers.items():
            self._core.settled(client, last.epoch, last.upto, refusals.get(client, ()), out)

    def read(self, news: LogRead, out: Output, now: float) -> None:
        effects = Effects()
        self.machine.read_done(news.want, news.spans, now, effects)
        self._carry(effects, out, now)

    # ── what happens elsewhere ───────────────────────────────────────────────────────────

    def received(self, neighbour: str, frame: DeliveryFrame, out: Output, now: float) -> None:
        self.tally.note("received", neighbour, frame, now)
        effects = Effects()
        self.machine.receive(neighbour, frame, now, effects)
        self._carry(effects, out, now)
        if self._retiring:
            self._let_go(out, now)

    def linked(self, neighbour: str, out: Output, now: float) -> None:
        effects = Effects()
        self.machine.linked(neighbour, now, effects)
        self._carry(effects, out, now)

    def gone(self, neighbour: str, out: Output, now: float) -> None:
        effects = Effects()
        self.machine.gone(neighbour, now, effects)
        self._carry(effects, out, now)

    def attach(self, hello: ClientHello, out: Output, now: float) -> None:
        client, cursors, effects = hello.client, hello.cursors, Effects()
        session = self._core.durable.sessions.get(client)
        durable = session is not None and session.durable
        merges = session is not None and session.total_order
        self.total_order.leave(client)
        awaited = self.total_order.enter(client) if merges else None
        resumes = session is not None and session.epoch == hello.resume
        self.machine.attach(client, cursors, now, effects, awaited, hello.hold, durable, resumes)
        known = {**session.cursors, **cursors} if session is not None else cursors
        for pubend, tick in known.items():
            if tick < LAST_TICK and self._is_destroyed(pubend):
                lost = ((tick + 1, LAST_TICK),)
                effects.deliver.append((client, Delivered(pubend, LAST_TICK, lost=lost)))
        self._carry(effects, out, now)

    def _is_destroyed(self, pubend: str) -> bool:
        """Its broker has another one, so it is gone, with all that has not come of it."""
        known = self._core.durable.routing.state.pubends
        broker = broker_of_pubend(pubend)
        return pubend not in known and any(broker_of_pubend(other) == broker for other in known)

    def ready(self, client: str, out: Output, now: float) -> None:
        effects = Effects()
        self.machine.durables.ready(client, now, effects)
        self._carry(effects, out, now)

    def effective(self, client: str, out: Output, now: float) -> None:
        """A request of a client was answered: perhaps it waits for no start any more."""
        if self.pubend:
            effects = Effects()
            self.machine.effective(client, now, effects)
            self._carry(effects, out, now)

    def detach(self, client: str, out: Output, now: float) -> None:
        effects = Effects()
        self.total_order.leave(client)
        self.machine.detach(client, now, effects)
        self._carry(effects, out, now)

    def processed(self, client: str, pubend: str, upto: int, out: Output, now: float) -> None:
        effects = Effects()
        self.machine.acked(client, pubend, upto, now, effects)
        self._carry(effects, out, now)
        session = self._core.durable.sessions.get(client) if upto >= LAST_TICK else None
        if session is not None and pubend in session.cursors and self._is_destroyed(pubend):
            self._core._journal(facts.LossLearnt(client, session.epoch, pubend), out, now)

    def alarm(self, key: tuple[Any, ...], out: Output, now: float) -> None:
        effects = Effects()
        self.machine.alarm(key, now, effects)
        self._carry(effects, out, now)
        if self._retiring:
            self._let_go(out, now)

    def tables_changed(self, then: Consequences, out: Output, now: float) -> None:
        """What a fact has done to subscriptions and pubends."""
        for tick, op in then.starts:
            self._write_start(tick, op, out)
        if then.restarted:
            self.machine.recall(self.pubend, (StartRecord(*each) for each in then.restarted))
        effects = Effects()
        if then.rerouted:
            self._look_for_pubends(effects, now)
        # Before anything is released: those that begin in this step are merged at the end of it.
        began = [each.pubend for each in then.started]
        for client in then.awaiting:
            self._await(client, effects, now, began)
        for each in then.started:
            self._start(each.op, each.pubend, each.tick, effects, now)
        for each in then.started:
            self.machine.lift(each.op, each.pubend, each.tick, now, effects)
        starts = self._core.durable.routing.state.starts
        for each in then.lifted:  # what has started again meanwhile is not over
            over = each.pubend not in starts.get(each.op, ())
            self.machine.lift(each.op, each.pubend, each.tick, now, effects, over=over)
        for op in then.ended:
            self.machine.end(op.client, op, now, effects)
            self._await(op.client, effects, now)
        for pubend in then.destroyed:
            self.machine.destroyed(pubend, now, effects)
        for client in then.awaiting:
            self._await(client, effects, now)
        self._carry(effects, out, now)
        self._retire(then.retired, out, now)
        for session in then.closed:
            self._forget(session, out)

    def _look_for_pubends(self, effects: Effects, now: float) -> None:
        """Which streams have no source any more, even if no start there was told by control."""
        known = self._core.durable.routing.state.pubends
        for pubend in self.machine.pubends():
            if self._is_destroyed(pubend):
                self.machine.destroyed(pubend, now, effects)
            elif pubend not in known:
                self.machine.unreachable(pubend, now, effects)

    def _await(self, client: str, effects: Effects, now: float, also: Sequence[str] = ()) -> None:
        """Tell the merge of a client, if it is here and has one, whom it waits for."""
        if client in self.total_order.clients:
            awaited = (*self.total_order.awaited(client), *also)
            self.machine.merging.awaits(client, awaited, now, effects)

    # ── retired advertisements ───────────────────────────────────────────────────────────

    def _retire(self, ops: list[OpId], out: Output, now: float) -> None:
        """They stay until all that was published under them has arrived."""
        for op in ops:
            known = self._last_ticks.get((op.client, op.epoch))
            self._retiring[op] = self._core.durable.lost_with(op.epoch) if known is None else known
        if ops:
            self._ask_for_acks(out, now)

    def _ask_for_acks(self, out: Output, now: float) -> None:
        self._let_go(out, now)
        if self._retiring:
            effects = Effects()
            self.machine.expect(self.pubend, effects)
            self._carry(effects, out, now)

    def _let_go(self, out: Output, now: float) -> None:
        upto = self.machine.acknowledged(self.pubend)
        for op, tick in list(self._retiring.items()):
            if tick <= upto and self._retiring.pop(op, None) is not None:
                self._core._journal(facts.AdvertisementOver(op, self.last_tick), out, now)
                self._forget((op.client, op.epoch), out)

    def _forget(self, session: tuple[str, str], out: Output) -> None:
        """Nothing comes any more from a session that is over, unless an advertisement of it still
        needs to know what was published under it."""
        durable = self._core.durable
        if durable.sessions.current(*session) is not None:
            return
        retired = ((op.client, op.epoch) for op in durable.routing.state.retired)
        if session in self._last_ticks and session not in retired:
            del self._last_ticks[session]
            out.forgotten.append(session)

    # ── carrying out ─────────────────────────────────────────────────────────────────────

    def _carry(self, effects: Effects, out: Output, now: float) -> None:
        core = self._core
        starts = core.durable.routing.state.starts
        for start in effects.started:
            if start.op.client in core.durable.routing.state.merging:
                continue  # in total order only control tells which start counts
            if start.pubend not in starts.get(start.op, ()):
                learnt = facts.StartLearnt(start.op, start.pubend, start.tick)
                core._journal(learnt, out, now)
        for floor in effects.floors:
            core._journal(facts.FloorRaised(*floor), out, now)
        for neighbour, frame in effects.send:
            if core.membership is not None:
                self.tally.note("sent", neighbour, frame, now)
                core.membership.bundle.send(neighbour, frame, out)
                continue
            link = core.links.get(neighbour)
            if link is not None and link.up:
                self.tally.note("sent", neighbour, frame, now)
                out.send.append((link.soft.connection, frame))
        for client, delivered in effects.deliver:
            soft = core.clients.get(client)
            if soft is None:
                raise InvariantError(f"{client} is delivered to, but has no session")
            if soft.connection:
                core.router.delivered += len(delivered.ticks)
                out.deliver.append((soft.connection, delivered))
                if delivered.ticks and client in self.total_order.clients:
                    self._pass(delivered.ticks[-1], out, now)
        for client in effects.hurried:
            soft = core.clients.get(client)
            if soft is not None and soft.connection:
                out.deliver.append((soft.connection, HowFar()))
        out.timers.extend(effects.timers)
        out.reads.extend(effects.reads)
        for silence in effects.silences:
            self._fall_silent(silence.upto, out, now)

    # ── ticks of others ──────────────────────────────────────────────────────────────────

    def _pass(self, tick: int, out: Output, now: float) -> None:
        """From now on, whatever happens, our own events come above this tick."""
        self.last_tick = max(self.last_tick, tick)
        upto = self._reserve.need(tick)
        if upto:
            self._core._journal(facts.TicksReserved(upto), out, now)
            out.confirm = upto

    def persisted(self, upto: int) -> None:
        self._reserve.durable(upto)

    def _fall_silent(self, upto: int, out: Output, now: float) -> None:
        """Somebody waits until we have passed a tick: now we have, and our clock as well. If
        events are on their way into the log, that is told behind them."""
        clock = int(now * TICKS_PER_S)
        self.last_tick = max(self.last_tick, min(upto, clock + FARTHEST), clock - 1)
        if not self._pending:
            self._advance(self.last_tick, out, now)
            return
        last = self._pending[-1]
        if not last.client and last.start is None:
            self._pending.pop()
        self._pending.append(silence_upto(self._appended, self.last_tick))

    def _advance(self, upto: int, out: Output, now: float) -> None:
        effects = Effects()
        self._pass(upto, out, now)
        self.machine.advance(self.pubend, upto, now, effects)
        self._carry(effects, out, now)
