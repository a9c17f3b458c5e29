"""Exactly-once events in one broker: its own pubend, and the streams of all others.

Soft code. Publications get their ticks here and go to the pubend's log (`Output.log`). When the
driver reports that they are durable (`Logged`), they enter the stream and the publisher gets its
answer. After a restart the log supplies its state (`Remembered`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, get_args

from msgspec import Raw

from motet.errors import InvariantError
from motet.model import Hop, OpId
from motet.model.ids import LAST_TICK, TICKS_PER_S
from motet.protocol.changes import (
    AdvertisementRetired,
    BlockMade,
    Grouped,
    PubendDestroyed,
    PubendMoved,
    SessionClosed,
    StartKnown,
    StartLapsed,
    StartMade,
    StartRecalled,
    StartsAwaited,
    SubscriptionEnded,
    SubscriptionEnding,
    SubscriptionSettled,
    SwitchKnown,
    TransactionMoved,
)
from motet.protocol.contract import (
    DropStaged,
    Logged,
    LogPredecessors,
    LogRead,
    LogRun,
    Output,
    Persisted,
    Remembered,
    RowsRead,
)
from motet.protocol.delivery.facts import (
    FloorRaised,
    LossLearnt,
    PubendFounded,
    StartLearnt,
    TicksReserved,
)
from motet.protocol.delivery.interest import Interests
from motet.protocol.delivery.machine import DeliveryMachine
from motet.protocol.delivery.messages import AckUp, Delivered, DeliveryFrame
from motet.protocol.delivery.neighbours import Tally
from motet.protocol.delivery.pubend import Pending, Retirement, Unlogged, runs_of, stand_of
from motet.protocol.delivery.spans import Range, Record, StartRecord
from motet.protocol.delivery.stream import Effects, Limits, Liveness
from motet.protocol.delivery.total_order import Reserve, TotalOrder
from motet.protocol.frames import Frame
from motet.protocol.publication import Publication
from motet.protocol.room import Objection, Peer, SoftRoom
from motet.protocol.routing.soft import Router
from motet.protocol.routing.starts import FARTHEST, broker_of_pubend
from motet.protocol.session.messages import (
    ClientHello,
    Processed,
    ProgressQuery,
    Ready,
    Refusal,
    SubscribeRequest,
)
from motet.protocol.session.state import Session
from motet.protocol.shared import SharedState
from motet.protocol.sinks.state import StagedBlock
from motet.protocol.transactions.facts import CutLogged, SwitchLearnt

if TYPE_CHECKING:
    from motet.protocol.transactions.state import Block


class Newcomer(NamedTuple):
    """A client that has moved here."""

    client: str
    levels: Mapping[str, int]
    """By pubend."""
    unclear: Iterable[str]
    """Pubends where it may have started without us knowing."""
    gone: Mapping[str, Range]
    """By pubend: a loss that it has not acknowledged."""


class CellLinks(Protocol):
    """Links between cells: the process that a frame goes to, and the name it is taken under."""

    def send(self, neighbour: str, frame: DeliveryFrame, out: Output) -> None: ...
    def asker(self, neighbour: str, frame: DeliveryFrame) -> str: ...
    def acknowledged(self, neighbour: str, frame: AckUp, out: Output) -> None: ...


def _unheard(
    client: str, epoch: str, upto: int, refused: tuple[Refusal, ...], out: Output
) -> None: ...


SUBSCRIPTIONS = frozenset(
    {
        SubscriptionEnding,
        SubscriptionEnded,
        SwitchKnown,
        StartKnown,
        StartLapsed,
        StartsAwaited,
        PubendMoved,
        PubendDestroyed,
    }
)
"""Changes of subscriptions, and of the pubends that they receive from."""


class Streams(SoftRoom):
    """The interface of delivery for other rooms; they use little else of it:

    publishing      pubend, publish, follow, precede, next_tick, done_with
    sessions        attach, detach, left, effective, objection
    links, cells    received, linked, gone, unasked
    mobility        arrive, depart, last_of, precede, again, repeat; arrivals, fenced, fencing,
                    swept
    """

    concerns = SUBSCRIPTIONS | {
        StartMade,
        StartRecalled,
        BlockMade,
        SubscriptionSettled,
        AdvertisementRetired,
        SessionClosed,
        TransactionMoved,
    }

    def __init__(
        self,
        shared: SharedState,
        router: Router,
        liveness: Liveness | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._shared = shared
        self._router = router
        self.settled: Callable[[str, str, int, tuple[Refusal, ...], Output], None] = _unheard
        """Called when publications of a session up to a number are settled; some may be refused."""
        self.cell: CellLinks | None = None
        """Set if streams use the links of cells."""
        self.interests = Interests(shared.durable.routing, shared.links, router)
        self.machine = DeliveryMachine(self.interests, liveness, limits)
        self.machine.clients.reach = self._reach
        self.arrivals: Callable[[str], Iterable[Newcomer]] = lambda _: ()
        """The session of a client, if it has moved here; of no client: all that have."""
        self.fenced: Callable[[str, AckUp], Frame] = lambda _, ack: ack
        self.fencing: Collection[str] = ()
        """Neighbours whose acknowledgements are fenced."""
        self.swept: Collection[str] = ()
        """Neighbours that send fenced acknowledgements now: others are from before."""
        """How an acknowledgement to a neighbour is sent."""
        self.tally = Tally()
        self.pubend = shared.durable.routing.state.hosted
        """This broker's own; empty if it does not deliver exactly once."""
        self.last_tick = 0
        self.begun = False
        """Has `begin` been called, so that the end of the log is known?"""
        self.unlogged = Unlogged()
        self.retirement = Retirement(self, self._expect, shared)
        self._confirms = 0
        self._reserving: deque[tuple[int, int]] = deque()
        self.total_order = TotalOrder(shared.durable.routing)
        self._reserve = Reserve(shared.durable.delivery.reserved)

    def frames(self) -> Mapping[type, Callable[[int, Any, Any, Output, float], None]]:
        return {
            Processed: self._processed,
            Ready: self._ready,
            **dict.fromkeys(get_args(DeliveryFrame), self._stream_frame),
        }

    def inputs(self) -> Mapping[type, Callable[[Any, Output, float], None]]:
        return {
            Logged: self._logged,
            LogRead: self._read,
            Persisted: self._persisted,
            RowsRead: self._rows_read,
        }

    def timers(self) -> Mapping[str, Callable[[Any, Output, float], None]]:
        return {"delivery": self._alarm}

    def _processed(
        self, connection: int, peer: Peer, frame: Processed, out: Output, now: float
    ) -> None:
        del connection
        client, pubend, upto = peer.name, frame.pubend, frame.upto
        self.run(out, now, self.machine.clients.acked, client, pubend, upto)
        self.retirement.acknowledged(client, out, now)
        session = self._shared.durable.sessions.get(client) if upto >= LAST_TICK else None
        if session is not None and pubend in session.cursors and self._is_destroyed(pubend):
            self._shared.journal(LossLearnt(client, session.epoch, pubend), out, now)

    def _ready(self, connection: int, peer: Peer, frame: Ready, out: Output, now: float) -> None:
        del connection, frame
        self.run(out, now, self.machine.clients.ready, peer.name)

    def _stream_frame(
        self, connection: int, peer: Peer, frame: DeliveryFrame, out: Output, now: float
    ) -> None:
        del connection
        if type(frame) is AckUp and peer.name in self.swept:
            return
        if self._shared.links[peer.name].move("question") == "accept":
            cell = self.cell
            source = peer.name if cell is None else cell.asker(peer.name, frame)
            self.received(source, frame, out, now)
            if cell is not None and type(frame) is AckUp:
                cell.acknowledged(peer.name, frame, out)

    def _persisted(self, news: Persisted, out: Output, now: float) -> None:
        del now
        while self._reserving and self._reserving[0][0] <= news.confirmed:
            self._reserve.durable(self._reserving.popleft()[1])
        self.unlogged.persisted(news.confirmed, out)

    def _rows_read(self, news: RowsRead, out: Output, now: float) -> None:
        del now
        self.unlogged.rows(news, out)

    def account(self) -> dict[str, Any]:
        """`total_order`: the number of its clients, and by pubend how many of them have events that
        wait for it, and since when, on the broker's clock."""
        blocked = self.machine.clients.blocked()
        waiting_for = {
            pubend: {"clients": count, "since_s": round(since_s, 6)}
            for pubend, (count, since_s) in sorted(blocked.items())
        }
        merging = {"clients": len(self.total_order.clients), "waiting_for": waiting_for}
        return {"delivery": self.tally.account(), "total_order": merging}

    # ── life ─────────────────────────────────────────────────────────────────────────────

    def begin(self, remembered: Remembered, out: Output, now: float) -> None:
        """Called first in a broker's life: restores the streams and continues unfinished work."""
        shared = self._shared
        routing = shared.durable.routing
        state = routing.state
        self.retirement.last_ticks = dict.fromkeys(remembered.published, remembered.last_tick)
        reserved = shared.durable.delivery.reserved
        self._reserve = Reserve(reserved)
        self.last_tick = max(remembered.last_tick, routing.starts.next_tick - 1, reserved)
        self.begun = True
        if not self.pubend:
            self.pubend = f"{shared.config.name}.{shared.config.incarnation}"
            shared.journal(PubendFounded(self.pubend), out, now)
        effects = Effects(now)
        begun = [e for e in state.subscriptions if e.start]
        starts = ((e.start, e.id, bool(e.tx) or e.id in routing.marks.uncut) for e in begun)
        records = tuple(StartRecord(*each) for each in sorted(starts))
        durable, logged = shared.durable, remembered.last_tick
        staged = durable.sinks.state.blocks.values()
        log = stand_of(durable.transactions.cutter.state, staged, logged, self.last_tick)
        self.machine.host(self.pubend, log.upto, effects, records, log.cut)
        for pubend, floor in shared.durable.delivery.floors.items():
            self.machine.restore(pubend, floor)
        for session in shared.durable.sessions:
            if session.durable:
                self.machine.clients.recall(session.client, session.cursors, durable=True)
        for arrival in self.arrivals(""):
            self._expect_arrival(arrival)
        for op, ticks in routing.starts.known.items():
            for pubend, tick in ticks.items():
                self._start(op, pubend, tick, effects)
        self.machine.started(self.machine.pubends(), effects)
        self._look_for_pubends(effects)
        self._carry(effects, out, now)
        ended = (e.id for e in state.subscriptions if e.ended and not e.source.is_broker)
        self.retirement.ending = dict.fromkeys(ended)
        for block in log.unwritten:
            self._write_block(block, out, known=remembered.last_tick)
        for block in log.written:
            self._block_logged(block.tx, out, now)
        self.retirement.retire(list(state.retired), out, now)
        for over in list(self.retirement.last_ticks):
            self.retirement.forget(over, out)

    def _expect_arrival(self, arrival: Newcomer) -> None:
        self.machine.clients.recall(arrival.client, arrival.levels)
        self.machine.clients.losses.expect(arrival.client, arrival.gone)
        for pubend in arrival.unclear:
            self.machine.unclear(pubend)

    def arrive(self, client: str, out: Output, now: float) -> None:
        """A session has moved here; it is one of `arrivals`."""
        self.total_order.leave(client)
        durable, effects = self._shared.durable, Effects(now)
        self.machine.clients.detach(client, effects)  # an earlier session of it may have ended here
        session = durable.sessions.get(client)
        if session is not None and session.durable:
            self.machine.clients.recall(client, session.cursors, durable=True)
        for arrival in self.arrivals(client):
            self._expect_arrival(arrival)
        started: dict[str, None] = {}
        for entry in durable.routing.state.subscriptions.from_source(Hop.client(client)):
            for pubend, tick in durable.routing.starts.known.get(entry.id, {}).items():
                self._start(entry.id, pubend, tick, effects)
                started[pubend] = None
            if entry.ended:
                self.retirement.ending[entry.id] = None
        self.machine.started(started, effects)
        self._look_for_pubends(effects)
        self._carry(effects, out, now)

    def depart(self, client: str, epoch: str, ops: Iterable[OpId], out: Output, now: float) -> None:
        """A session has moved away, with these subscriptions."""
        self.machine.clients.losses.forget(client)
        self.detach(client, out, now)
        effects = Effects(now)
        for op in ops:
            self.retirement.is_over(op)
            self.machine.clients.end(op, effects)
        self._carry(effects, out, now)
        self.retirement.forget((client, epoch), out)

    def _start(self, op: OpId, pubend: str, tick: int, effects: Effects) -> None:
        """To be followed by `machine.started`."""
        starts = self._shared.durable.routing.starts
        tentative = pubend in starts.tentative.get(op, ())
        self.machine.clients.start(op, pubend, tick, effects, tentative, several=True)
        end = starts.ends.get(op, {}).get(pubend)
        if end is not None:
            self.machine.clients.switch(op, pubend, end, True, effects)
        session = self._shared.durable.sessions.current(op.client, op.epoch)
        if session is not None and pubend in (done := session.done.get(op.sequence, {})):
            self.machine.clients.done(op.client, op.sequence, pubend, done[pubend])

    def _reach(self, op: OpId, pubend: str) -> int | None:
        session = self._shared.durable.sessions.current(op.client, op.epoch)
        wanted = session.since.get(op.sequence) if session is not None else None
        return wanted.get(pubend, wanted.get("")) if wanted else None

    def left(self, session: Session, done: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
        """A durable client has left: its position in each pubend. `done`: subscriptions that were
        processed further."""
        clients = self.machine.clients
        for sequence, ticks in done.items():
            for pubend, tick in ticks.items():
                clients.done(session.client, sequence, pubend, tick)
        return clients.begun(session.client)

    def objection(self, session: Session, request: SubscribeRequest) -> Objection | None:
        """Why a subscription cannot have the past that it wants; None if it can."""
        if not request.since:
            return None
        if not self.pubend:
            text = f"{self._shared.name} does not deliver exactly once, so it has no earlier events"
            return Objection("NotOffered", text)
        client = session.client
        known = {**session.cursors, **self.machine.clients.begun(client)}
        for pubend, tick in known.items():
            since = request.since.get(pubend, request.since.get("", tick))
            if since < tick:
                return Objection(
                    "TooLate",
                    f"{client} has already read {pubend} up to tick {tick}, so a subscription "
                    "cannot ask for its earlier events; subscribe before reading, or use another "
                    "client",
                )
        return None

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
        """Accepted events of a client, numbered from `first`, skipping the refused ones."""
        if not bodies:
            upto = first + len(refused) - 1
            if not self.follow(client, epoch, upto, refused):
                self.settled(client, epoch, upto, refused, out)
            return
        tick = self.next_tick(now)
        upto = first + len(bodies) + len(refused) - 1
        self.last_tick = self.retirement.last_ticks[client, epoch] = tick + len(bodies) - 1
        if not refused:  # nearly always: one run, without looking at numbers
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
        """Answer best-effort events after earlier sure ones. False: there are none to wait for."""
        if not self.unlogged.answers(client):
            return False
        self.unlogged.answer(client, epoch, upto, refused)
        return True

    def precede(
        self,
        publisher: str,
        predecessors: Mapping[str, int],
        trail: Mapping[str, int],
        out: Output,
        now: float,
    ) -> None:
        """A publisher has moved here: what it publishes from now on comes behind its earlier events
        in other pubends, each up to a tick. `predecessors` may still be owed; `trail` names all of
        them, for readers of the log. To be called before its first event after each arrival, and
        after each restart of this broker, when `begin` was called."""
        owed = {p: tick for p, tick in predecessors.items() if p != self.pubend}
        rest = {p: t for p, t in trail.items() if p != self.pubend and t > owed.get(p, 0)}
        if not (owed or rest) or not self.pubend:
            return
        above = min(max((*owed.values(), *rest.values())), int(now * TICKS_PER_S) + FARTHEST)
        self.last_tick = max(self.next_tick(now), above + 1)
        cut = self._shared.durable.transactions.cutter.state.last_cut
        named = tuple(owed.items()), cut, tuple(rest.items())
        self.unlogged.precede(LogPredecessors(self.last_tick, publisher, *named), out)

    def next_tick(self, now: float) -> int:
        """The tick of the next event or start; 0 if this broker has no pubend."""
        if not self.pubend:
            return 0
        tick, promised = int(now * TICKS_PER_S), self._shared.durable.routing.starts.next_tick
        if tick < promised:
            tick = promised
        return tick if tick > self.last_tick else self.last_tick + 1

    def _write(self, starts: Sequence[StartMade], cuts: Sequence[BlockMade], out: Output) -> None:
        """Log what one fact has made, in the order of ticks: a cut that settles its transaction
        releases requests that waited for it, and these may start subscriptions above the cut."""
        made: list[StartMade | BlockMade] = [*starts, *cuts]
        if starts and cuts:
            made.sort(key=_tick_of)
        for each in made:
            if isinstance(each, StartMade):
                self._write_start(each.tick, each.op, each.tentative, out)
            else:
                self.unlogged.wait_for(self._confirm(out))
                self._write_block(each.block, out)

    def _write_start(self, tick: int, op: OpId, tentative: bool, out: Output) -> None:
        """The journal has the start; the log shows it to readers of the stream."""
        self.last_tick = max(self.last_tick, tick)
        self.unlogged.start(tick, op, tentative, out)

    def _write_block(self, block: Block | StagedBlock, out: Output, known: int = 0) -> None:
        """Log a cut and its events, except for the part up to `known`, which the log has."""
        self.last_tick = max(self.last_tick, block.last_tick)
        self.retirement.published_in(block)
        if isinstance(block, StagedBlock):
            self.unlogged.copy(block, known, out)
        else:
            self.unlogged.block(block, known, out)

    def _block_logged(self, tx: str, out: Output, now: float) -> None:
        staged = self._shared.durable.sinks.state.blocks.get(tx)
        if staged is not None:
            out.staged.append(DropStaged(staged))
        self._shared.journal(CutLogged(tx), out, now)

    def _logged(self, news: Logged, out: Output, now: float) -> None:
        """Records are durable in the log: publish them, and answer their publishers."""
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
        effects = Effects(now)
        if ticks or records:
            self.machine.published(self.pubend, ticks, batch, effects, tuple(records))
        self._carry(effects, out, now)
        for tx in blocks:
            self._block_logged(tx, out, now)
        if pieces:
            self.unlogged.copied(pieces, out)
        if self.retirement.ending:
            self.retirement.let_pass(out, now)
        if silent:
            self._advance(silent, out, now)
        if self.retirement.retiring:
            self.retirement.published(ticks, out, now)
        for client, last in answers.items():
            self.settled(client, last.epoch, last.upto, refusals.get(client, ()), out)

    def _read(self, news: LogRead, out: Output, now: float) -> None:
        self.run(out, now, self.machine.read_done, news.want, news.spans)

    # ── neighbours and clients ───────────────────────────────────────────────────────────

    def received(self, neighbour: str, frame: DeliveryFrame, out: Output, now: float) -> None:
        self.tally.note("received", neighbour, frame, now)
        effects = Effects(now)
        self.machine.receive(neighbour, frame, effects)
        self._carry(effects, out, now)
        self.retirement.look(out, now)

    def done_with(self) -> int:
        """All brokers have acknowledged this broker's pubend up to this tick."""
        return self.machine.acknowledged(self.pubend) if self.pubend else 0

    def _expect(self, out: Output, now: float) -> None:
        """Ask for acknowledgements of this broker's pubend at once."""
        if self.begun:
            self.run(out, now, self.machine.expect, self.pubend)

    def attach(self, hello: ClientHello, out: Output, now: float) -> None:
        """A client has connected."""
        client, cursors, effects = hello.client, hello.cursors, Effects(now)
        session = self._shared.durable.sessions.get(client)
        durable = session is not None and session.durable
        merges = session is not None and session.total_order
        self.total_order.leave(client)
        awaited = self.total_order.enter(client) if merges else None
        resumes = session is not None and session.epoch == hello.resume
        self.machine.clients.attach(client, cursors, effects, awaited, hello.hold, durable, resumes)
        self.retirement.look_again(client)
        known = {**session.cursors, **cursors} if session is not None else cursors
        for pubend, tick in known.items():
            if tick < LAST_TICK and self._is_destroyed(pubend):
                lost = ((tick + 1, LAST_TICK),)
                effects.deliver.append((client, Delivered(pubend, LAST_TICK, lost=lost)))
        self._carry(effects, out, now)

    def _is_destroyed(self, pubend: str) -> bool:
        """The pubend's broker has another one, so this one is gone with its undelivered events."""
        known = self._shared.durable.routing.state.pubends
        broker = broker_of_pubend(pubend)
        return pubend not in known and any(broker_of_pubend(other) == broker for other in known)

    def effective(self, client: str, out: Output, now: float) -> None:
        """A request of a client was answered: it may not wait for a start any more."""
        if self.pubend:
            self.run(out, now, self.machine.effective, client)

    def detach(self, client: str, out: Output, now: float) -> None:
        """A client's connection is gone."""
        self.total_order.leave(client)
        self.retirement.look_again(client)
        self.run(out, now, self.machine.clients.detach, client)

    def _alarm(self, key: tuple[Any, ...], out: Output, now: float) -> None:
        self.run(out, now, self.machine.alarm, key)
        self.retirement.look_again()
        self.retirement.look(out, now)

    def changed(self, changes: Grouped, out: Output, now: float) -> None:
        """Apply the changes that a fact has made to subscriptions and pubends."""
        for closed in changes.get(SessionClosed, ()):
            # A session that was fenced may have been connected, and a newer one may arrive now.
            self.detach(closed.client, out, now)
        if StartMade in changes or BlockMade in changes:
            self._write(changes.get(StartMade, ()), changes.get(BlockMade, ()), out)
        if StartRecalled in changes:
            records = (
                StartRecord(each.tick, each.op, each.tentative) for each in changes[StartRecalled]
            )
            self.machine.recall(self.pubend, records)
        if not SUBSCRIPTIONS.isdisjoint(changes):
            self._subscriptions_changed(changes, out, now)
        if AdvertisementRetired in changes:
            retired = changes[AdvertisementRetired]
            self.retirement.retire([each.op for each in retired], out, now)
        if SessionClosed in changes:
            for closed in changes[SessionClosed]:
                self.machine.clients.losses.forget(closed.client)
                self.retirement.forget((closed.client, closed.epoch), out)
        self.retirement.changed(changes, out, now)

    def _subscriptions_changed(self, changes: Grouped, out: Output, now: float) -> None:
        effects = Effects(now)
        if PubendMoved in changes:
            self._look_for_pubends(effects)
        known, switched = changes.get(StartKnown, ()), changes.get(SwitchKnown, ())
        awaiting: dict[str, None] = {}
        if StartsAwaited in changes:  # before anything is released: these pubends join the merge
            began = [each.pubend for each in known]
            awaiting = dict.fromkeys(each.client for each in changes[StartsAwaited])
            for client in awaiting:
                self._await(client, effects, began)
        starts = self._shared.durable.routing.starts.known
        if known:
            self._started(known, switched, effects)
        for lapsed in changes.get(StartLapsed, ()):  # not over if it has started again
            over = lapsed.pubend not in starts.get(lapsed.op, ())
            self.machine.clients.lift(lapsed.op, lapsed.pubend, lapsed.tick, effects, over=over)
        for switch in switched:
            self.machine.clients.switch(
                switch.op, switch.pubend, switch.tick, switch.ended, effects
            )
        for ending in changes.get(SubscriptionEnding, ()):
            self.retirement.ending[ending.op] = None
        for ended in changes.get(SubscriptionEnded, ()):
            self.retirement.is_over(ended.op)
            self.machine.clients.end(ended.op, effects)
            self._await(ended.op.client, effects)
        for destroyed in changes.get(PubendDestroyed, ()):
            self.machine.destroyed(destroyed.pubend, effects)
        for client in awaiting:
            self._await(client, effects)
        self._carry(effects, out, now)

    def _started(
        self, known: Sequence[StartKnown], switched: Sequence[SwitchKnown], effects: Effects
    ) -> None:
        starts = self._shared.durable.routing.starts.known
        # A start removed in the same step must not be learnt as if only the stream knew it.
        started = [each for each in known if each.pubend in starts.get(each.op, ())]
        if switched:  # a cut that comes with a start decides its tick
            cuts = {(s.op, s.pubend): s.tick for s in switched if not s.ended}
            started = [
                StartKnown(s.op, s.pubend, cuts.get((s.op, s.pubend), s.tick), s.tentative)
                for s in started
            ]
        for each in started:
            self._start(each.op, each.pubend, each.tick, effects)
        self.machine.started(dict.fromkeys(each.pubend for each in started), effects)
        for each in started:
            self.machine.clients.lift(each.op, each.pubend, each.tick, effects, anew=True)

    def _look_for_pubends(self, effects: Effects) -> None:
        """Find streams without a source, even if control never reported a start there."""
        routing = self._shared.durable.routing
        known = routing.state.pubends
        awaited = (pubend for each in routing.joins.awaited.values() for pubend in each)
        for pubend in dict.fromkeys((*self.machine.pubends(), *awaited)):
            if self._is_destroyed(pubend):
                self.machine.destroyed(pubend, effects)
            elif pubend not in known:
                self.machine.unreachable(pubend, effects)

    def _await(self, client: str, effects: Effects, also: Sequence[str] = ()) -> None:
        """Tell the merge of a client, if it has one, which pubends to wait for."""
        if client in self.total_order.clients:
            awaited = (*self.total_order.awaited(client), *also)
            self.machine.clients.awaits(client, awaited, effects)

    # ── carrying out ─────────────────────────────────────────────────────────────────────

    def run(self, out: Output, now: float, door: Callable[..., None], *args: object) -> None:
        """Call an entry point of the machine, and carry out its effects."""
        effects = Effects(now)
        door(*args, effects)
        self._carry(effects, out, now)

    def _carry(self, effects: Effects, out: Output, now: float) -> None:
        shared = self._shared
        for start in effects.started:
            routing = shared.durable.routing
            if start.op.client in routing.joins.merging:
                continue  # in total order only control decides which start is valid
            if start.pubend not in routing.starts.known.get(start.op, ()):
                learnt = StartLearnt(start.op, start.pubend, start.tick, start.tentative)
                shared.journal(learnt, out, now)
        for switch in effects.switched:
            shared.journal(SwitchLearnt(*switch), out, now)
        for floor in effects.floors:
            shared.journal(FloorRaised(*floor), out, now)
        for neighbour, frame in effects.send:
            if self.cell is not None:
                self.tally.note("sent", neighbour, frame, now)
                self.cell.send(neighbour, frame, out)
                continue
            link = shared.links.get(neighbour)
            if link is not None and link.up:
                self.tally.note("sent", neighbour, frame, now)
                sent: Frame = frame
                if type(frame) is AckUp and neighbour in self.fencing:
                    sent = self.fenced(neighbour, frame)
                out.send.append((link.soft.connection, sent))
        for client, delivered in effects.deliver:
            soft = shared.clients.get(client)
            if soft is None:
                raise InvariantError(f"{client} is delivered to, but has no session")
            if soft.connection:
                self._router.delivered += len(delivered.ticks)
                out.deliver.append((soft.connection, delivered))
                if delivered.ticks and client in self.total_order.clients:
                    self._pass(delivered.ticks[-1], out, now)
        for client in effects.hurried:
            soft = shared.clients.get(client)
            if soft is not None and soft.connection:
                out.deliver.append((soft.connection, ProgressQuery()))
        out.timers += effects.timers
        out.reads += effects.reads
        for silence in effects.silences:
            self._fall_silent(silence.upto, out, now)

    # ── ticks of other brokers ───────────────────────────────────────────────────────────

    def _pass(self, tick: int, out: Output, now: float) -> None:
        """From now on, even after a crash, this broker's events get ticks above this one."""
        self.last_tick = max(self.last_tick, tick)
        upto = self._reserve.need(tick)
        if upto:
            self._shared.journal(TicksReserved(upto), out, now)
            self._reserving.append((self._confirm(out), upto))

    def _confirm(self, out: Output) -> int:
        """Request a confirmation when the facts of this output are durable."""
        if not out.confirm:
            self._confirms += 1
            out.confirm = self._confirms
        return out.confirm

    def _fall_silent(self, upto: int, out: Output, now: float) -> None:
        """Pass a tick that a client or neighbour waits for, and the clock as well. If events are
        on their way into the log, the silence is announced after them."""
        clock = int(now * TICKS_PER_S)
        self.last_tick = max(self.last_tick, min(upto, clock + FARTHEST), clock - 1)
        if self.unlogged.is_idle:
            self._advance(self.last_tick, out, now)
        else:
            self.unlogged.silence(self.last_tick)

    def _advance(self, upto: int, out: Output, now: float) -> None:
        self._pass(upto, out, now)
        self.run(out, now, self.machine.advance, self.pubend, upto)


def _tick_of(made: StartMade | BlockMade) -> int:
    return made.tick if isinstance(made, StartMade) else made.block.tick
