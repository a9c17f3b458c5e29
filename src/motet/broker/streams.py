"""Exactly-once events in one broker: its own pubend, and the streams of all others.

Soft code. What a client publishes gets ticks here and goes to the pubend's log (`Output.log`);
when the driver reports that it is durable (`Logged`), it enters the stream and the publisher is
told. After a restart the log gives back what is needed (`Remembered`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Raw
from msgspec.structs import replace

from motet.broker import facts
from motet.broker.interests import Interests
from motet.broker.leaving import Leaving
from motet.broker.pending import Pending, Unlogged, runs_of, stand_of
from motet.broker.reaching import too_far_back
from motet.broker.remembered import Remembered
from motet.broker.total_order import Reserve, TotalOrder
from motet.errors import InvariantError
from motet.model import OpId
from motet.model.ticks import LAST_TICK, TICKS_PER_S
from motet.protocol.contract import DropStaged, Logged, LogRead, LogRun, Output
from motet.protocol.delivery.curiosity import Liveness
from motet.protocol.delivery.machine import DeliveryMachine
from motet.protocol.delivery.messages import Delivered, DeliveryFrame
from motet.protocol.delivery.spans import Record, StartRecord
from motet.protocol.delivery.state import Effects, Limits
from motet.protocol.delivery.tally import Tally
from motet.protocol.publication import Publication
from motet.protocol.routing.joins import FARTHEST
from motet.protocol.routing.starts import broker_of_pubend
from motet.protocol.session.messages import ClientHello, HowFar, Refusal, Request
from motet.protocol.session.state import Session
from motet.protocol.sinks.state import StagedBlock

if TYPE_CHECKING:
    from motet.broker.consequences import Consequences
    from motet.broker.core import BrokerCore
    from motet.protocol.transactions.state import Block


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
        self.begun = False
        """Is it known how far our log is?"""
        self.unlogged = Unlogged()
        self.leaving = Leaving(self, core)
        self._confirms = 0
        self._reserving: deque[tuple[int, int]] = deque()
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
        self.leaving.last_ticks = dict.fromkeys(remembered.published, remembered.last_tick)
        self._reserve = Reserve(core.durable.reserved)
        self.last_tick = max(remembered.last_tick, state.next_tick - 1, core.durable.reserved)
        self.begun = True
        if not state.hosted:
            name = f"{core.config.name}.{core.config.incarnation}"
            core._journal(facts.PubendFounded(name), out, now)
        effects = Effects()
        begun = [e for e in state.subscriptions if e.start]
        starts = ((e.start, e.id, bool(e.tx) or e.id in state.uncut) for e in begun)
        records = tuple(StartRecord(*each) for each in sorted(starts))
        durable, logged = core.durable, remembered.last_tick
        staged = durable.sinks.state.blocks.values()
        log = stand_of(durable.transactions.state, staged, logged, self.last_tick)
        self.machine.host(self.pubend, log.upto, now, effects, records, log.cut)
        for pubend, floor in core.durable.floors.items():
            self.machine.restore(pubend, floor)
        for session in core.durable.sessions:
            if session.durable:
                self.machine.durables.recall(session.client, session.cursors)
        for op, ticks in state.starts.items():
            for pubend, tick in ticks.items():
                self._start(op, pubend, tick, effects, now)
        self._look_for_pubends(effects, now)
        self.carry(effects, out, now)
        ended = (e.id for e in state.subscriptions if e.ended and not e.source.is_broker)
        self.leaving.ending = dict.fromkeys(ended)
        for block in log.unwritten:
            self._write_block(block, out, known=remembered.last_tick)
        for block in log.written:
            self._block_logged(block.tx, out, now)
        self.leaving.retire(list(state.retired), out, now)
        for over in list(self.leaving.last_ticks):
            self.leaving.forget(over, out)

    def _start(self, op: OpId, pubend: str, tick: int, effects: Effects, now: float) -> None:
        state = self._core.durable.routing.state
        tentative = pubend in state.tentative.get(op, ())
        self.machine.start(op.client, op, pubend, tick, now, effects, tentative)
        end = state.ends.get(op, {}).get(pubend)
        if end is not None:
            self.machine.switch(op, pubend, end, True, now, effects)
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
        session = self._core.durable.sessions.get(client)
        cursors = session.cursors if session is not None else {}
        known = {**cursors, **self.machine.durables.begun(client)}
        where = "" if self.pubend else self._core.config.name
        return too_far_back(client, request, known, where)

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
        self.last_tick = self.leaving.last_ticks[client, epoch] = tick + len(bodies) - 1
        if not refused:  # nearly always: one run, and no number is looked at
            batch = [Publication(client, number, body) for number, body in enumerate(bodies, first)]
            self.unlogged.log(LogRun(tick, client, epoch, first, bodies), out)
        else:
            wrong = {each.sequence for each in refused}
            numbers = [number for number in range(first, upto + 1) if number not in wrong]
            batch = [Publication(client, n, b) for n, b in zip(numbers, bodies, strict=True)]
            for begin, end in runs_of(numbers):
                part = bodies[begin:end]
                run = LogRun(tick + begin, client, epoch, numbers[begin], part)
                self.unlogged.log(run, out)
        self.unlogged.answer(client, epoch, upto, refused, tick, batch)

    def follow(self, client: str, epoch: str, upto: int, refused: tuple[Refusal, ...]) -> bool:
        """Best-effort events are answered behind sure ones before them; false: at once."""
        if not self.unlogged.answers(client):
            return False
        self.unlogged.answer(client, epoch, upto, refused)
        return True

    def start_tick(self, now: float) -> int:
        """Where subscriptions start that come now; 0 if they start nowhere here."""
        return self.next_tick(now) if self.pubend else 0

    def next_tick(self, now: float) -> int:
        """What the next event or start here will have."""
        promised = self._core.durable.routing.state.next_tick
        return max(self.last_tick + 1, promised, int(now * TICKS_PER_S))

    def _write_start(self, tick: int, op: OpId, tentative: bool, out: Output) -> None:
        """The journal has it; the log shows it to those who read the stream."""
        self.last_tick = max(self.last_tick, tick)
        self.unlogged.start(tick, op, tentative, out)

    def _write_block(self, block: Block | StagedBlock, out: Output, known: int = 0) -> None:
        """A cut and its events, but for what the log has already, up to tick `known`."""
        self.last_tick = max(self.last_tick, block.last_tick)
        self.leaving.published_in(block)
        if isinstance(block, StagedBlock):
            self.unlogged.copy(block, known, out)
        else:
            self.unlogged.block(block, known, out)

    def _block_logged(self, tx: str, out: Output, now: float) -> None:
        staged = self._core.durable.sinks.state.blocks.get(tx)
        if staged is not None:
            out.staged.append(DropStaged(staged))
        self._core._journal(facts.CutLogged(tx), out, now)

    def logged(self, news: Logged, out: Output, now: float) -> None:
        """Our log has made records durable: they are published."""
        ticks: list[int] = []
        batch: list[Publication] = []
        records: list[Record] = []
        answers: dict[str, Pending] = {}
        refusals: dict[str, tuple[Refusal, ...]] = {}
        silent = 0
        blocks: list[str] = []
        pieces = 0
        for each in self.unlogged.take(news.records):
            pieces += each.copied
            if each.is_silence:
                silent = each.first_tick
                continue
            if each.cut:
                blocks.append(each.cut)
            if each.record is not None:
                records.append(each.record)
            if each.batch:
                ticks.extend(range(each.first_tick, each.first_tick + len(each.batch)))
                batch.extend(each.batch)
            if not each.client:
                continue
            answers[each.client] = each
            if each.refused:
                refusals[each.client] = refusals.get(each.client, ()) + each.refused
        effects = Effects()
        if ticks or records:
            self.machine.published(self.pubend, ticks, batch, now, effects, tuple(records))
        self.carry(effects, out, now)
        for tx in blocks:
            self._block_logged(tx, out, now)
        if pieces:
            self.unlogged.copied(pieces, out)
        if self.leaving.ending:
            self.leaving.let_pass(out, now)
        if silent:
            self._advance(silent, out, now)
        if self.leaving.retiring:
            self.leaving.published(ticks, out, now)
        for client, last in answers.items():
            self._core.settled(client, last.epoch, last.upto, refusals.get(client, ()), out)

    def read(self, news: LogRead, out: Output, now: float) -> None:
        effects = Effects()
        self.machine.read_done(news.want, news.spans, now, effects)
        self.carry(effects, out, now)

    # ── what happens elsewhere ───────────────────────────────────────────────────────────

    def received(self, neighbour: str, frame: DeliveryFrame, out: Output, now: float) -> None:
        self.tally.note("received", neighbour, frame, now)
        effects = Effects()
        self.machine.receive(neighbour, frame, now, effects)
        self.carry(effects, out, now)
        self.leaving.look(out, now)

    def linked(self, neighbour: str, out: Output, now: float) -> None:
        effects = Effects()
        self.machine.linked(neighbour, now, effects)
        self.carry(effects, out, now)

    def gone(self, neighbour: str, out: Output, now: float) -> None:
        effects = Effects()
        self.machine.gone(neighbour, now, effects)
        self.carry(effects, out, now)

    def attach(self, hello: ClientHello, out: Output, now: float) -> None:
        client, cursors, effects = hello.client, hello.cursors, Effects()
        session = self._core.durable.sessions.get(client)
        durable = session is not None and session.durable
        merges = session is not None and session.total_order
        self.total_order.leave(client)
        awaited = self.total_order.enter(client) if merges else None
        resumes = session is not None and session.epoch == hello.resume
        self.machine.attach(client, cursors, now, effects, awaited, hello.hold, durable, resumes)
        self.leaving.look_again(client)
        known = {**session.cursors, **cursors} if session is not None else cursors
        for pubend, tick in known.items():
            if tick < LAST_TICK and self._is_destroyed(pubend):
                lost = ((tick + 1, LAST_TICK),)
                effects.deliver.append((client, Delivered(pubend, LAST_TICK, lost=lost)))
        self.carry(effects, out, now)

    def _is_destroyed(self, pubend: str) -> bool:
        """Its broker has another one, so it is gone, with all that has not come of it."""
        known = self._core.durable.routing.state.pubends
        broker = broker_of_pubend(pubend)
        return pubend not in known and any(broker_of_pubend(other) == broker for other in known)

    def ready(self, client: str, out: Output, now: float) -> None:
        effects = Effects()
        self.machine.durables.ready(client, now, effects)
        self.carry(effects, out, now)

    def effective(self, client: str, out: Output, now: float) -> None:
        """A request of a client was answered: perhaps it waits for no start any more."""
        if self.pubend:
            effects = Effects()
            self.machine.effective(client, now, effects)
            self.carry(effects, out, now)

    def detach(self, client: str, out: Output, now: float) -> None:
        effects = Effects()
        self.total_order.leave(client)
        self.machine.detach(client, now, effects)
        self.leaving.look_again(client)
        self.carry(effects, out, now)

    def processed(self, client: str, pubend: str, upto: int, out: Output, now: float) -> None:
        effects = Effects()
        self.machine.acked(client, pubend, upto, now, effects)
        self.carry(effects, out, now)
        self.leaving.acknowledged(client, out, now)
        session = self._core.durable.sessions.get(client) if upto >= LAST_TICK else None
        if session is not None and pubend in session.cursors and self._is_destroyed(pubend):
            self._core._journal(facts.LossLearnt(client, session.epoch, pubend), out, now)

    def alarm(self, key: tuple[Any, ...], out: Output, now: float) -> None:
        effects = Effects()
        self.machine.alarm(key, now, effects)
        self.carry(effects, out, now)
        self.leaving.look_again()
        self.leaving.look(out, now)

    def tables_changed(self, then: Consequences, out: Output, now: float) -> None:
        """What a fact has done to subscriptions and pubends."""
        for tick, op, tentative in then.starts:
            self._write_start(tick, op, tentative, out)
        blocks: list[Block | StagedBlock] = [*then.blocks, *then.staged]
        for block in blocks:
            self.unlogged.wait_for(self._confirm(out))
            self._write_block(block, out)
        if then.restarted:
            self.machine.recall(self.pubend, (StartRecord(*each) for each in then.restarted))
        effects = Effects()
        if then.rerouted:
            self._look_for_pubends(effects, now)
        began = [each.pubend for each in then.started]
        for client in then.awaiting:  # before anything is released: these are merged in the end
            self._await(client, effects, now, began)
        starts = self._core.durable.routing.state.starts
        # What has gone again in the same step must not be learnt as if only the stream knew it.
        started = [each for each in then.started if each.pubend in starts.get(each.op, ())]
        if started and then.switched:  # a cut that has come with a start says where it is
            cuts = {(s.op, s.pubend): s.tick for s in then.switched if not s.ended}
            started = [replace(s, tick=cuts.get((s.op, s.pubend), s.tick)) for s in started]
        for each in started:
            self._start(each.op, each.pubend, each.tick, effects, now)
        for each in started:
            self.machine.lift(each.op, each.pubend, each.tick, now, effects)
        for each in then.lifted:  # what has started again meanwhile is not over
            over = each.pubend not in starts.get(each.op, ())
            self.machine.lift(each.op, each.pubend, each.tick, now, effects, over=over)
        for switch in then.switched:
            self.machine.switch(switch.op, switch.pubend, switch.tick, switch.ended, now, effects)
        self.leaving.ending |= dict.fromkeys(then.ending)
        for op in then.ended:
            self.leaving.is_over(op)
            self.machine.end(op.client, op, now, effects)
            self._await(op.client, effects, now)
        for pubend in then.destroyed:
            self.machine.destroyed(pubend, now, effects)
        for client in then.awaiting:
            self._await(client, effects, now)
        self.carry(effects, out, now)
        if then.retired:
            self.leaving.retire(then.retired, out, now)
        for session in then.closed:
            self.leaving.forget(session, out)
        self.leaving.changed(then, out, now)

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

    # ── carrying out ─────────────────────────────────────────────────────────────────────

    def carry(self, effects: Effects, out: Output, now: float) -> None:
        core = self._core
        for start in effects.started:
            state = core.durable.routing.state
            if start.op.client in state.merging:
                continue  # in total order only control tells which start counts
            if start.pubend not in state.starts.get(start.op, ()):
                learnt = facts.StartLearnt(start.op, start.pubend, start.tick, start.tentative)
                core._journal(learnt, out, now)
        for switch in effects.switched:
            core._journal(facts.SwitchLearnt(*switch), out, now)
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
        out.timers += effects.timers
        out.reads += effects.reads
        for silence in effects.silences:
            self._fall_silent(silence.upto, out, now)

    # ── ticks of others ──────────────────────────────────────────────────────────────────

    def _pass(self, tick: int, out: Output, now: float) -> None:
        """From now on, whatever happens, our own events come above this tick."""
        self.last_tick = max(self.last_tick, tick)
        upto = self._reserve.need(tick)
        if upto:
            self._core._journal(facts.TicksReserved(upto), out, now)
            self._reserving.append((self._confirm(out), upto))

    def _confirm(self, out: Output) -> int:
        """We want to hear when the facts of this output are durable."""
        if not out.confirm:
            self._confirms += 1
            out.confirm = self._confirms
        return out.confirm

    def persisted(self, confirmed: int, out: Output) -> None:
        while self._reserving and self._reserving[0][0] <= confirmed:
            self._reserve.durable(self._reserving.popleft()[1])
        self.unlogged.persisted(confirmed, out)

    def _fall_silent(self, upto: int, out: Output, now: float) -> None:
        """Somebody waits until we have passed a tick: now we have, and our clock as well. If
        events are on their way into the log, that is told behind them."""
        clock = int(now * TICKS_PER_S)
        self.last_tick = max(self.last_tick, min(upto, clock + FARTHEST), clock - 1)
        if self.unlogged.is_idle:
            self._advance(self.last_tick, out, now)
        else:
            self.unlogged.silence(self.last_tick)

    def _advance(self, upto: int, out: Output, now: float) -> None:
        effects = Effects()
        self._pass(upto, out, now)
        self.machine.advance(self.pubend, upto, now, effects)
        self.carry(effects, out, now)
