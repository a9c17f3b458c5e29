"""The root decides transactions, one after the other.

It decides what a coordinator's broker has collected, or, for a plan, what the root itself has
collected. Only the root's absence may keep a transaction undecided, and the order of its decisions
is the order of all transactions, in every log. An isolated transaction is validated first;
meanwhile, nothing is decided that could change what it has read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from motet.model import Filter, Hop, OpId, decode_attributes
from motet.protocol.routing.state import RoutingState, announced_home
from motet.protocol.session.messages import Done, OutcomeRequest, TxRequest
from motet.protocol.transactions.coordinator import ABORTED, COMMITTED, Coordinator
from motet.protocol.transactions.courier import (
    OPENING,
    PREPARE,
    Abandoned,
    Courier,
    Outgoing,
    Unanswered,
)
from motet.protocol.transactions.cutter import TxTables
from motet.protocol.transactions.decisions import Decisions
from motet.protocol.transactions.messages import (
    Ask,
    Contribution,
    Decide,
    Engaged,
    Open,
    Opening,
    OtherReason,
    Prepare,
    Query,
    Reason,
    SameKey,
    Submit,
    Tell,
    TimeoutReason,
    Verdict,
    Withdraw,
    is_tx,
    op_of,
    parse_reason,
)
from motet.protocol.transactions.participant import GRACE_S, Participant, too_large
from motet.protocol.transactions.state import (
    Flood,
    Held,
    Ignored,
    Move,
    Moves,
    PlanGathering,
    RootRequest,
    RootRequestState,
    RootState,
    Submission,
    TxOutcome,
    key_of,
)

MOST_OUTCOMES = 100_000
KEPT_S = 7 * 86_400.0
"""How long the root remembers its decisions."""
MOST_EVENTS = 2048
"""Events of one pubend in one transaction: subscribers get them at once, and need the room."""
RUNNING, EXPIRED = "in progress", "expired"
SHOWN_CHARS = 60


class RootPhase(Move):
    UNKNOWN = "unknown"
    OPENED = "opened"
    GATHERING = "waiting for parts of its plan"
    QUEUED = "queued"
    VALIDATING = "being validated"
    DECIDED = "decided"
    SETTLED = "settled"


class RootEvent(Move):
    OPEN = "its opening"
    PART = "a part of its plan"
    COMPLETE = "the last missing part of its plan"
    SUBMIT = "its submission"
    WITHDRAW = "its withdrawal"
    QUERY = "a question about it"
    TIMEOUT = "its timeout"
    VALIDATE = "its validation"
    ANSWER = "the answer to its validation"
    DECIDE = "its decision"
    SETTLE = "its effect everywhere"
    EXPIRE = "the end of its retention"


WILL_HEAR = Ignored("the asking broker receives the decision anyway")
MOVES: Moves[RootPhase, RootEvent] = Moves(
    "transaction",
    {
        RootPhase.UNKNOWN: {
            RootEvent.OPEN: RootPhase.OPENED,
            RootEvent.PART: RootPhase.GATHERING,
            RootEvent.SUBMIT: RootPhase.QUEUED,
            # Later messages of the transaction are too late.
            RootEvent.WITHDRAW: RootPhase.DECIDED,
            RootEvent.QUERY: RootPhase.UNKNOWN,
            RootEvent.TIMEOUT: Ignored("it was decided, and forgotten"),
            RootEvent.ANSWER: Ignored("it was decided, and forgotten"),
            RootEvent.DECIDE: RootPhase.DECIDED,
            RootEvent.SETTLE: Ignored("its outcome was forgotten before"),
        },
        RootPhase.OPENED: {
            RootEvent.OPEN: RootPhase.OPENED,
            RootEvent.PART: Ignored("isolated transactions have no plan"),
            RootEvent.SUBMIT: RootPhase.QUEUED,
            RootEvent.WITHDRAW: RootPhase.DECIDED,
            RootEvent.QUERY: WILL_HEAR,
            RootEvent.TIMEOUT: RootPhase.DECIDED,
            RootEvent.ANSWER: Ignored("it is not submitted, so it is not being validated"),
            RootEvent.DECIDE: RootPhase.DECIDED,
        },
        RootPhase.GATHERING: {
            RootEvent.OPEN: Ignored("a plan is not opened"),
            RootEvent.PART: RootPhase.GATHERING,
            RootEvent.COMPLETE: RootPhase.QUEUED,
            RootEvent.SUBMIT: Ignored("its parts submit it"),
            RootEvent.WITHDRAW: RootPhase.DECIDED,
            RootEvent.QUERY: WILL_HEAR,
            RootEvent.TIMEOUT: RootPhase.DECIDED,
            RootEvent.ANSWER: Ignored("it is not submitted, so it is not being validated"),
            RootEvent.DECIDE: RootPhase.DECIDED,
        },
        RootPhase.QUEUED: {
            RootEvent.OPEN: Ignored("it was opened before"),
            RootEvent.PART: Ignored("all of its parts are here"),
            RootEvent.SUBMIT: Ignored("it was submitted before"),
            RootEvent.WITHDRAW: RootPhase.DECIDED,
            RootEvent.QUERY: WILL_HEAR,
            RootEvent.TIMEOUT: RootPhase.QUEUED,
            RootEvent.VALIDATE: RootPhase.VALIDATING,
            RootEvent.ANSWER: Ignored("it was not asked"),
            RootEvent.DECIDE: RootPhase.DECIDED,
        },
        RootPhase.VALIDATING: {
            RootEvent.OPEN: Ignored("it was opened before"),
            RootEvent.PART: Ignored("all of its parts are here"),
            RootEvent.SUBMIT: Ignored("it was submitted before"),
            RootEvent.WITHDRAW: RootPhase.DECIDED,
            RootEvent.QUERY: WILL_HEAR,
            RootEvent.TIMEOUT: RootPhase.DECIDED,
            RootEvent.ANSWER: RootPhase.DECIDED,
            RootEvent.DECIDE: RootPhase.DECIDED,
        },
        RootPhase.DECIDED: {
            RootEvent.OPEN: Ignored("a withdrawal has overtaken it"),
            RootEvent.PART: WILL_HEAR,
            RootEvent.SUBMIT: WILL_HEAR,
            RootEvent.WITHDRAW: WILL_HEAR,
            RootEvent.QUERY: WILL_HEAR,
            RootEvent.TIMEOUT: Ignored("it is decided"),
            RootEvent.ANSWER: Ignored("it is decided"),
            RootEvent.DECIDE: Ignored("it is decided"),
            RootEvent.SETTLE: RootPhase.SETTLED,
            RootEvent.EXPIRE: RootPhase.UNKNOWN,
        },
        RootPhase.SETTLED: {
            RootEvent.OPEN: Ignored("a withdrawal has overtaken it"),
            # The asking broker was away: the verdict goes to it alone.
            RootEvent.PART: RootPhase.SETTLED,
            RootEvent.SUBMIT: RootPhase.SETTLED,
            RootEvent.WITHDRAW: RootPhase.SETTLED,
            RootEvent.QUERY: RootPhase.SETTLED,
            RootEvent.TIMEOUT: Ignored("it is decided"),
            RootEvent.ANSWER: Ignored("it is decided"),
            RootEvent.DECIDE: Ignored("it is decided"),
            RootEvent.EXPIRE: RootPhase.UNKNOWN,
        },
    },
)


@dataclass(eq=False)
class Root:
    _courier: Courier
    _out: Outgoing
    _versions: TxTables
    _participant: Participant
    _decisions: Decisions
    state: RootState = field(default_factory=RootState, init=False)

    def __post_init__(self) -> None:
        if self._courier.is_root:
            self._decisions.on_settled = self._settled

    def phase(self, tx: str) -> RootPhase:
        state = self.state
        if tx in state.outcomes:
            return RootPhase.DECIDED if self._decisions.is_active(tx) else RootPhase.SETTLED
        for queued in state.queue:
            if queued.tx == tx:
                return RootPhase.VALIDATING if queued.asked else RootPhase.QUEUED
        if tx in state.gatherings:
            return RootPhase.GATHERING
        opened = tx in state.opened or self._versions.is_open(tx)
        return RootPhase.OPENED if opened else RootPhase.UNKNOWN

    def outcome(self, tx: str) -> str:
        """The outcome of a transaction, as clients are told."""
        found = self.state.outcomes.get(tx)
        if found is not None:
            return COMMITTED if found.committed else ABORTED
        return EXPIRED if self.phase(tx) is RootPhase.UNKNOWN else RUNNING

    # ── letters ──────────────────────────────────────────────────────────────────────────

    def open(self, letter: Open) -> None:
        tx = letter.tx
        if MOVES.next(self.phase(tx), RootEvent.OPEN, tx) is not None:
            self.state.opened[tx] = letter.timeout_s
            self._watch(tx)
            flood = self._versions.open(Opening(tx), "")
            if flood is not None:
                self.answered(flood)

    def engaged(self, letter: Engaged) -> None:
        """One more part of a plan is done."""
        tx, state = letter.tx, self.state
        after = MOVES.next(self.phase(tx), RootEvent.PART, tx)
        if after is RootPhase.SETTLED:
            self._tell(tx, letter.contribution.broker)
        if after is not RootPhase.GATHERING:
            return
        gathering = state.gatherings.get(tx)
        if gathering is None:
            gathering = PlanGathering(letter.cast, letter.key, letter.timeout_s)
            state.gatherings[tx] = gathering
            if self._participant.get(tx) is None:
                self._watch(tx)
        gathering.contributions[letter.contribution.client] = letter.contribution
        if not gathering.missing:
            MOVES.next(self.phase(tx), RootEvent.COMPLETE, tx)
            del state.gatherings[tx]
            if self._participant.get(tx) is None:
                self._unwatch(tx)
            done = tuple(gathering.contributions.values())
            self._enqueue(Submit(tx, done, gathering.key))

    def submitted(self, letter: Submit) -> None:
        tx = letter.tx
        after = MOVES.next(self.phase(tx), RootEvent.SUBMIT, tx)
        if after is RootPhase.SETTLED:
            mine = (c.broker for c in letter.contributions if c.client == op_of(tx).client)
            self._tell(tx, next(filter(None, mine), "") or announced_home(op_of(tx).epoch))
        if after is RootPhase.QUEUED:
            self._enqueue(letter)

    def _enqueue(self, letter: Submit) -> None:
        tx = letter.tx
        self.state.queue.append(Submission(tx, letter.contributions, letter.key, letter.isolated))
        excess = _too_many_events(letter.contributions) or too_large(letter.contributions)
        reason = self._same(tx, letter.key) or (OtherReason(excess) if excess else None)
        if reason is None:
            self._review()
        else:
            MOVES.next(self.phase(tx), RootEvent.DECIDE, tx)
            self._abort(tx, reason)

    def withdrawn(self, letter: Withdraw) -> None:
        tx = letter.tx
        after = MOVES.next(self.phase(tx), RootEvent.WITHDRAW, tx)
        if after is RootPhase.SETTLED:
            self._tell(tx, letter.broker)
        if after is not RootPhase.DECIDED:
            return
        reason = parse_reason(letter.reason)
        gathering = self.state.gatherings.get(tx)
        if gathering is not None and isinstance(reason, TimeoutReason):
            reason = reason.waiting_for(gathering.missing)
        self._abort(tx, self._same(tx, letter.key) or reason)
        self._review()

    def queried(self, letter: Query) -> None:
        if MOVES.next(self.phase(letter.tx), RootEvent.QUERY, letter.tx) is not None:
            self._tell(letter.tx, letter.broker)

    def _tell(self, tx: str, broker: str) -> None:
        """To a broker that missed the decision. A lost outcome is reported as an abort."""
        known = self.state.outcomes.get(tx)
        if known is None:
            known = TxOutcome(0, False, "the root has lost its outcome", self._out.now)
        verdict = Verdict(tx, known.number, known.committed, known.reason)
        self._courier.post(broker, verdict)

    # ── timeouts ─────────────────────────────────────────────────────────────────────────

    def _watch(self, tx: str) -> None:
        """A second timer, in case its coordinator's broker has lost its state."""
        gathering = self.state.gatherings.get(tx)
        wait_s = self.state.opened[tx] if gathering is None else gathering.timeout_s
        self._out.set_timer(Abandoned(tx), self._out.now + wait_s + 2 * GRACE_S)

    def _unwatch(self, tx: str) -> None:
        self._out.cancel_timer(Abandoned(tx))

    def watched(self) -> Iterator[tuple[str, float]]:
        """After a restart: the transactions that have a timer, each with its duration."""
        waits_s = {tx: each.timeout_s for tx, each in self.state.gatherings.items()}
        for tx, wait_s in (self.state.opened | waits_s).items():
            yield tx, wait_s + 2 * GRACE_S

    def abandoned(self, tx: str) -> None:
        """A plan is incomplete, or an isolated transaction was not submitted, in time; or a broker
        does not answer its validation, which delays all transactions that wait for it."""
        before = self.phase(tx)
        if before is not RootPhase.GATHERING and tx not in self.state.opened:
            return  # its timer was cancelled
        after = MOVES.next(before, RootEvent.TIMEOUT, tx)
        if after is None:
            return
        if before is RootPhase.GATHERING:
            text = f"{', '.join(self.state.gatherings[tx].missing)} did not answer"
            self._abort(tx, OtherReason(text))
        elif before is RootPhase.OPENED:
            self._abort(tx, OtherReason("its coordinator did not answer"))
        elif before is RootPhase.QUEUED:
            self._watch(tx)
        else:
            missing = ", ".join(self._courier.waiting_for(PREPARE, tx))
            text = f"its reads cannot be validated: {missing}, or a broker behind"
            self._abort(tx, OtherReason(f"{text}, does not answer"))
            self._review()

    # ── validation ───────────────────────────────────────────────────────────────────────

    def _review(self) -> None:
        """Decide, or begin to validate, each transaction that no validation holds up."""
        asking = [each for each in self.state.queue if each.asked]
        for each in list(self.state.queue):
            if each.asked or any(_clash(other, each) for other in asking):
                continue
            # Nor may it be validated while what it has read may be about to change.
            if each.isolated and any(_clash(each, other) for other in asking):
                continue
            if each.isolated and any(one.invited for one in each.contributions):
                asking.append(each)
                self._validate(each)
            else:
                MOVES.next(self.phase(each.tx), RootEvent.DECIDE, each.tx)
                self._commit(each)

    def _validate(self, each: Submission) -> None:
        MOVES.next(self.phase(each.tx), RootEvent.VALIDATE, each.tx)
        each.asked = True
        if each.tx in self.state.opened:
            self._watch(each.tx)
        flood = self._versions.check(Prepare(each.tx), "")
        if flood is not None:
            self.answered(flood)

    def answered(self, flood: Flood) -> None:
        """All brokers have answered a question of the root."""
        tx = flood.tx
        if flood.what == OPENING:
            self._courier.follow(Tell(op_of(tx), tx))
            return
        found = self._queued(tx)
        if found is not None and MOVES.next(self.phase(tx), RootEvent.ANSWER, tx) is not None:
            if flood.objection:
                self._abort(tx, OtherReason(flood.objection))
            else:
                self._commit(found)
        self._review()

    def _queued(self, tx: str) -> Submission | None:
        return next((each for each in self.state.queue if each.tx == tx), None)

    def _unqueue(self, tx: str) -> None:
        self.state.queue = [each for each in self.state.queue if each.tx != tx]

    # ── decisions ────────────────────────────────────────────────────────────────────────

    def _same(self, tx: str, key: str) -> SameKey | None:
        """The transaction of the same client and key that was committed before, if any."""
        before = self.state.keys.get(key_of(tx, key)) if key else None
        return None if before is None else SameKey(before)

    def _commit(self, each: Submission) -> None:
        same = self._same(each.tx, each.key)
        if same is not None:  # decided while this one was validated
            self._abort(each.tx, same)
            return
        parts = each.contributions
        begun = tuple(begun for one in parts for begun in one.begun)
        ended = tuple(ended for one in parts for ended in one.ended)
        pubends = tuple(dict.fromkeys(one.pubend for one in parts if one.pubend))
        brokers = tuple(dict.fromkeys(one.broker for one in parts if one.broker))
        number = self._decisions.next_number()
        outcome = TxOutcome(number, True, "", self._out.now, each.key)
        self._announce(Decide(each.tx, number, True, "", begun, ended, pubends, brokers), outcome)

    def _abort(self, tx: str, reason: Reason) -> None:
        number = self._decisions.next_number()
        outcome = TxOutcome(number, False, reason.text, self._out.now)
        self._announce(Decide(tx, number, False, reason.text), outcome)

    def _announce(self, message: Decide, outcome: TxOutcome) -> None:
        tx, state = message.tx, self.state
        self._unqueue(tx)
        state.remember(tx, outcome)
        watched = state.opened.pop(tx, None) is not None
        if watched | (state.gatherings.pop(tx, None) is not None):
            self._unwatch(tx)
        self._forget_old()
        self._decisions.decide(message, "")

    def _forget_old(self) -> None:
        outcomes = self.state.outcomes
        while outcomes:
            first = next(iter(outcomes))
            if len(outcomes) <= MOST_OUTCOMES and outcomes[first].at > self._out.now - KEPT_S:
                return
            MOVES.next(self.phase(first), RootEvent.EXPIRE, first)
            self.state.forget(first)

    def _settled(self, tx: str) -> None:
        """The decision is in effect everywhere."""
        MOVES.next(self.phase(tx), RootEvent.SETTLE, tx)

    def decided(self, message: Decide, source: Hop) -> None:
        """A neighbour reports a decision. The root has made it itself, but may have lost it with
        its state."""
        if not self._courier.is_root:
            self._decisions.decide(message, source.name)
        elif MOVES.next(self.phase(message.tx), RootEvent.DECIDE, message.tx) is not None:
            told = TxOutcome(message.number, message.committed, message.reason, self._out.now)
            self._announce(message, told)


def _too_many_events(contributions: tuple[Contribution, ...]) -> str:
    events: dict[str, int] = {}
    for each in contributions:
        events[each.pubend] = events.get(each.pubend, 0) + each.events
    for pubend, count in events.items():
        if count > MOST_EVENTS:
            text = f"it publishes {count} events at {pubend}, but a transaction may have at most"
            return f"{text} {MOST_EVENTS} per pubend; split it into several transactions"
    return ""


def _clash(reading: Submission, other: Submission) -> bool:
    """Could `other` change what `reading` has read?"""
    bodies = [body for one in reading.contributions for body in one.invited]
    filters: list[Filter] = []
    for one in other.contributions:
        filters += [each.filter for each in one.begun] + [each.filter for each in one.ended]
    read = [decode_attributes(body) for body in bodies]
    return any(filter.matches(attributes) for filter in filters for attributes in read)


@dataclass(eq=False)
class RootRequests:
    """Requests of local clients that need the root.

    Links come up one after the other, also when an overlay starts, so such a request waits for a
    route to the root until its own timeout. An open transaction is known to its coordinator's
    broker; the outcome of a decided one is known to the root.
    """

    _courier: Courier
    _out: Outgoing
    _tables: RoutingState
    _participant: Participant
    _coordinator: Coordinator
    _root: Root
    state: RootRequestState = field(default_factory=RootRequestState, init=False)

    # ── a route to the root ──────────────────────────────────────────────────────────────

    def hold(self, op: OpId, request: TxRequest) -> bool:
        """Whether a request is held: it needs the root, and there is no route to it."""
        courier = self._courier
        if not isinstance(request, RootRequest) or not courier.root or not self._tables.hosted:
            return False
        if courier.towards(courier.root) is not None or self._is_answered_here(request):
            return False
        at = self._out.now + request.timeout_s
        self.state.waiting[op] = Held("", op, request, at)
        self._out.set_timer(Unanswered(op), at)
        return True

    def _is_answered_here(self, request: RootRequest) -> bool:
        if not isinstance(request, OutcomeRequest):
            return False
        return not is_tx(request.tx) or self._is_open(request.tx)

    def reroute(self) -> None:
        """Routes have changed. If there is one to the root, release the requests that wait for it,
        with the time that they have left."""
        if not self.state.waiting or self._courier.towards(self._courier.root) is None:
            return
        waiting, self.state.waiting = self.state.waiting, {}
        for op, held in waiting.items():
            self._out.cancel_timer(Unanswered(op))
            left_s = held.until - self._out.now  # after a restart the full timeout runs again
            timeout_s = left_s if left_s > 0 else held.request.timeout_s
            request = replace(held.request, timeout_s=timeout_s)
            self._out.effects.released.append(replace(held, request=request))

    def unanswered(self, op: OpId) -> None:
        """The timeout of a request that waits for a route to the root, or for the root's answer."""
        name, root = self._courier.name, self._courier.root
        waited_s = self.state.questions.get(str(op))
        if op in self.state.waiting:
            waited_s = self.state.waiting.pop(op).request.timeout_s
            text = f"{name} found no way to the root {root} of the overlay within "
            text += f"{waited_s:g} s, so nothing was begun: check with `motet "
            text += f"status` that {root} runs and that the links to it are up, then try again"
            self._out.fail(op, "TimedOut", text)
        elif waited_s is not None:
            del self.state.questions[str(op)]
            text = f"the root {root} did not answer within {waited_s:g} s; ask again"
            self._out.fail(op, "TimedOut", text)

    def left(self, client: str, epoch: str) -> None:
        """A local session has ended."""
        for question in list(self.state.questions):
            if op_of(question)[:2] == (client, epoch):
                del self.state.questions[question]
        for op in [op for op in self.state.waiting if op[:2] == (client, epoch)]:
            del self.state.waiting[op]

    # ── outcomes ─────────────────────────────────────────────────────────────────────────

    def ask(self, op: OpId, request: OutcomeRequest) -> None:
        """A local client asks for the outcome of a transaction."""
        if not is_tx(request.tx):
            text = f"{request.tx[:SHOWN_CHARS]!r} is not the id of a transaction; use tx.id"
            self._out.fail(op, "MisuseError", text)
        elif self._is_open(request.tx):
            self._out.answer(op, Done(op.sequence, RUNNING))
        elif not self._coordinator.is_not_offered(op):
            self.state.questions[str(op)] = request.timeout_s
            self._out.set_timer(Unanswered(op), self._out.now + request.timeout_s)
            asked = Ask(request.tx, op, self._courier.name)
            if self._courier.towards_coordinator(request.tx) is None:
                self._courier.post(self._courier.root, asked)
            else:
                self._courier.follow(asked)

    def asked(self, letter: Ask) -> None:
        """Another broker asks for its client."""
        reached = letter.reached or self._courier.towards_coordinator(letter.tx) == ""
        if self._is_open(letter.tx):
            self._courier.post(letter.broker, Tell(letter.op, RUNNING))
        elif self._courier.is_root:
            outcome = self._root.outcome(letter.tx)
            if outcome == EXPIRED and not reached:  # its coordinator may have it open
                outcome = ""
            self._courier.post(letter.broker, Tell(letter.op, outcome))
        else:
            self._courier.post(self._courier.root, replace(letter, reached=reached))

    def told(self, letter: Tell) -> None:
        """The answer to a local client's request for an outcome, or to begin a transaction."""
        if self.state.questions.pop(str(letter.op), None) is not None:
            self._out.cancel_timer(Unanswered(letter.op))
        if not letter.outcome:
            text = "the root does not know it, and the broker of its coordinator cannot be reached"
            self._out.fail(letter.op, "UnavailableError", f"{text}; ask again later")
            return
        self._out.answer(letter.op, Done(letter.op.sequence, letter.outcome))

    def _is_open(self, tx: str) -> bool:
        """As far as we know; it may wait for a route to the root, and begin later."""
        if self._coordinator.get(tx) is not None or self._participant.get(tx) is not None:
            return True
        return op_of(tx) in self.state.waiting
