"""The root: what is decided, and in which order; and how everybody hears of it.

What a coordinator's broker has collected, or of a plan the root itself, the root decides: it is the
one place whose absence may keep a transaction undecided, and the order in which it decides is the
order of all transactions, in every log. An isolated transaction is validated first; as long as that
takes, nothing is decided that could change what it has read.
"""

from __future__ import annotations

from motet.model import Filter, Hop, OpId, decode_attributes
from motet.protocol.contract import CancelTimer, SetTimer
from motet.protocol.routing.messages import Confirmed
from motet.protocol.transactions.collecting import ABORTED, COMMITTED, RUNNING, Collecting
from motet.protocol.transactions.effects import op_of
from motet.protocol.transactions.messages import (
    SAME_KEY,
    Begun,
    Contribution,
    Decide,
    Echoed,
    Effective,
    Ended,
    Engaged,
    Open,
    Opening,
    Prepare,
    Query,
    Reply,
    Settle,
    Submit,
    Tell,
    Verdict,
    Withdraw,
)
from motet.protocol.transactions.participating import (
    GRACE_S,
    LATE,
    WATCH,
    too_large,
)
from motet.protocol.transactions.state import (
    Active,
    Flood,
    Gathering,
    Local,
    Outcome,
    Submission,
    key_of,
)

MOST_OUTCOMES = 100_000
KEPT_S = 7 * 86_400.0
"""How long the root remembers what it has decided."""
MOST_EVENTS = 2048
"""Of one pubend in one transaction: subscribers get them at once, and must have room for them."""


class Deciding(Collecting):
    # ── the root ─────────────────────────────────────────────────────────────────────────

    def _open(self, letter: Open) -> None:
        if letter.tx not in self.state.outcomes:
            self.state.opened[letter.tx] = letter.timeout_s
            self._watch(letter.tx)
            self._spread(Opening(letter.tx), "opening", letter.tx, "")

    def _watch(self, tx: str) -> None:
        """Its coordinator's broker sees to it, unless that has lost its state."""
        gathering = self.state.gatherings.get(tx)
        wait_s = self.state.opened[tx] if gathering is None else gathering.timeout_s
        at = self.now + wait_s + 2 * GRACE_S
        self._effects.timers.append(SetTimer(("transaction", f"{WATCH}{tx}"), at))

    def _unwatch(self, tx: str) -> None:
        self._effects.timers.append(CancelTimer(("transaction", f"{WATCH}{tx}")))

    def _forsaken(self, tx: str) -> None:
        """Nobody has submitted an isolated transaction, or withdrawn it; or somebody who is away
        was asked whether it still holds, and all that it holds back waits for that."""
        found = [each for each in self.state.queue if each.tx == tx]
        gathering = self.state.gatherings.get(tx)
        if tx not in self.state.opened and gathering is None:
            return
        if gathering is not None:
            text = f"{', '.join(gathering.missing)} did not answer"
            self._decide_now(tx, (), False, text)
        elif not found:
            self._decide_now(tx, (), False, "nothing was heard of its coordinator any more")
        elif not found[0].asked:
            self._watch(tx)
        else:
            self.state.queue.remove(found[0])
            missing = self.state.floods[f"prepare {tx}"].missing
            text = f"what it has read cannot be validated: {', '.join(missing)}, or somebody behind"
            self._decide_now(tx, (), False, f"{text}, does not answer")
            self._review()

    def _submitted(self, letter: Submit) -> None:
        known = self.state.outcomes.get(letter.tx)
        if known is not None or any(each.tx == letter.tx for each in self.state.queue):
            if known is not None and letter.tx not in self.state.active:
                verdict = Verdict(letter.tx, known.number, known.committed, known.reason)
                self._post(self._home(letter.tx), verdict)
            return
        reason = (
            self._same(letter.tx, letter.key)
            or _too_many_events(letter.contributions)
            or too_large(letter.contributions)
        )
        if reason:
            self._decide_now(letter.tx, (), False, reason)
            return
        told = Submission(letter.tx, letter.contributions, letter.key, letter.isolated)
        self.state.queue.append(told)
        self._review()

    def _engaged(self, letter: Engaged) -> None:
        """One more part of a plan is done. The root collects them, so that nobody has to send them
        on to it."""
        tx, state = letter.tx, self.state
        known = state.outcomes.get(tx)
        if known is not None:
            if tx not in state.active:
                verdict = Verdict(tx, known.number, known.committed, known.reason)
                self._post(letter.contribution.broker, verdict)
            return
        gathering = state.gatherings.get(tx)
        if gathering is None:
            gathering = Gathering(letter.cast, letter.key, letter.timeout_s)
            state.gatherings[tx] = gathering
            if tx not in state.locals:
                self._watch(tx)
        gathering.contributions[letter.contribution.client] = letter.contribution
        if not gathering.missing:
            del state.gatherings[tx]
            if tx not in state.locals:
                self._unwatch(tx)
            done = tuple(gathering.contributions.values())
            self._submitted(Submit(tx, done, gathering.key))

    def _same(self, tx: str, key: str) -> str:
        """Why another one with the same key was enough; empty if there is none."""
        before = self.state.keys.get(key_of(tx, key)) if key else None
        return "" if before is None else f"{SAME_KEY}{before}"

    def _withdrawn(self, letter: Withdraw) -> None:
        known = self.state.outcomes.get(letter.tx)
        if known is None:
            self.state.queue = [each for each in self.state.queue if each.tx != letter.tx]
            reason = letter.reason
            gathering = self.state.gatherings.get(letter.tx)
            if gathering is not None and reason.startswith(LATE):
                reason += f": {', '.join(gathering.missing)} did not answer"
            self._decide_now(letter.tx, (), False, self._same(letter.tx, letter.key) or reason)
            self._review()
        elif letter.tx not in self.state.active:
            verdict = Verdict(letter.tx, known.number, known.committed, known.reason)
            self._post(letter.broker, verdict)

    def _queried(self, letter: Query) -> None:
        tx, known = letter.tx, self.state.outcomes.get(letter.tx)
        if tx in self.state.active or self._outcome(tx) == RUNNING:
            return  # it will hear of it
        if known is None:
            known = Outcome(0, False, "the root has lost it", self.now)
        self._post(letter.broker, Verdict(tx, known.number, known.committed, known.reason))

    def _awaited(self) -> list[str]:
        """Transactions whose decision, or whose end, we wait for the root to tell, and nobody else
        here sees to."""
        told = [active.decide.tx for active in self.state.active.values() if active.source]
        reading = [tx for tx in self.state.bases if tx not in self.state.locals]
        return told + reading if self.root != self.name else []

    def _review(self) -> None:
        """Decide, or begin to validate, whatever no earlier one stands in the way of."""
        asking = [each for each in self.state.queue if each.asked]
        for each in list(self.state.queue):
            if each.asked or any(_clash(other, each) for other in asking):
                continue
            # Nor may it be asked what it has read while that is about to change.
            if each.isolated and any(_clash(each, other) for other in asking):
                continue
            if each.isolated and any(one.invited for one in each.contributions):
                each.asked = True
                asking.append(each)
                if each.tx in self.state.opened:
                    self._watch(each.tx)
                self._spread(Prepare(each.tx), "prepare", each.tx, "")
            else:
                self.state.queue.remove(each)
                self._decide_now(each.tx, each.contributions, True, "", each.key)

    def _decide_now(
        self,
        tx: str,
        contributions: tuple[Contribution, ...],
        committed: bool,
        reason: str,
        key: str = "",
    ) -> None:
        state = self.state
        same = self._same(tx, key) if committed else ""
        if same:  # that one was decided while this one was validated
            committed, reason, contributions = False, same, ()
        begun = tuple(each for one in contributions for each in one.begun)
        ended = tuple(each for one in contributions for each in one.ended)
        pubends = tuple(dict.fromkeys(one.pubend for one in contributions if one.pubend))
        brokers = tuple(dict.fromkeys(one.broker for one in contributions if one.broker))
        number = state.number + 1
        outcome = Outcome(number, committed, reason, self.now, key if committed else "")
        told = Decide(tx, number, committed, reason, begun, ended, pubends, brokers)
        self._announce(told, outcome)

    def _announce(self, message: Decide, outcome: Outcome) -> None:
        tx, state = message.tx, self.state
        state.remember(tx, outcome)
        watched = state.opened.pop(tx, None) is not None
        if watched | (state.gatherings.pop(tx, None) is not None):
            self._unwatch(tx)
        self._forget_old()
        self._decide(message, "")

    def _forget_old(self) -> None:
        outcomes = self.state.outcomes
        while outcomes:
            first = next(iter(outcomes))
            if len(outcomes) <= MOST_OUTCOMES and outcomes[first].at > self.now - KEPT_S:
                return
            self.state.forget(first)

    # ── floods ───────────────────────────────────────────────────────────────────────────

    def _spread(self, message: Opening | Prepare, what: str, tx: str, source: str) -> None:
        others = self._flood(message, source)
        flood = Flood(tx, what, source, dict.fromkeys(others))
        self.state.floods[f"{what} {tx}"] = flood
        if what == "opening":
            self._snapshot(tx)
        else:
            flood.objection = self._stale(tx)
        self._ebb(flood)

    def _snapshot(self, tx: str) -> None:
        raise NotImplementedError

    def _stale(self, tx: str) -> str:
        raise NotImplementedError

    def _opening(self, message: Opening, source: Hop) -> None:
        self._spread(message, "opening", message.tx, source.name)

    def _prepare(self, message: Prepare, source: Hop) -> None:
        self._spread(message, "prepare", message.tx, source.name)

    def _echoed(self, message: Echoed, source: Hop) -> None:
        if message.what in ("decide", "effective"):
            active = self.state.active.get(message.tx)
            if active is not None:
                active.concerned.pop(source.name, None)
                if message.what == "decide":
                    active.missing.pop(source.name, None)
                self.progress(active)
            return
        flood = self.state.floods.get(f"{message.what} {message.tx}")
        if flood is not None and source.name in flood.missing:
            del flood.missing[source.name]
            flood.objection = flood.objection or message.objection
            self._ebb(flood)

    def _ebb(self, flood: Flood) -> None:
        """Everybody behind us has answered."""
        if flood.missing:
            return
        del self.state.floods[f"{flood.what} {flood.tx}"]
        if flood.source:
            self._send(flood.source, Echoed(flood.tx, flood.what, flood.objection))
        elif flood.what == "opening":
            self._post(self._home(flood.tx), Tell(op_of(flood.tx), flood.tx))
        else:
            self._validated(flood)

    def _validated(self, flood: Flood) -> None:
        found = [each for each in self.state.queue if each.tx == flood.tx]
        for each in found:
            self.state.queue.remove(each)
            committed = not flood.objection
            contributions = each.contributions if committed else ()
            self._decide_now(each.tx, contributions, committed, flood.objection, each.key)
        self._review()

    # ── decisions ────────────────────────────────────────────────────────────────────────

    def _decided(self, message: Decide, source: Hop) -> None:
        if self.root != self.name:
            self._decide(message, source.name)
        elif message.tx not in self.state.outcomes:
            self._recall(message)

    def _recall(self, message: Decide) -> None:
        """We have decided this, and lost it with our state; a neighbour has not."""
        tx, state = message.tx, self.state
        state.queue = [each for each in state.queue if each.tx != tx]
        told = Outcome(message.number, message.committed, message.reason, self.now)
        self._announce(message, told)

    def _decide(self, message: Decide, source: str) -> None:
        tx = message.tx
        known = self.state.active.get(tx)
        if known is not None:  # told again, because the link has begun anew
            known.source, known.echoed, known.reported = source, False, False
            self.progress(known)
            return
        self.state.number = max(self.state.number, message.number)
        others = self._flood(message, source)
        active = Active(message, source, dict.fromkeys(others))
        concerned = self._concerned(message)
        active.concerned = {name: None for name in others if name in concerned}
        # Who told us waits for nothing more if it concerns nobody here, nor behind us.
        here = self.name in concerned or not source
        active.reported = not message.committed or not (here or active.concerned)
        self.state.active[tx] = active
        self._conclude(message)
        if message.committed:
            self._cut_if_touched(active)
        self.progress(active)

    def _concerned(self, message: Decide) -> set[str]:
        """Neighbours behind which somebody has part in it, or advertises what it begins or ends;
        and we ourselves, if that is so here. Only these the coordinator waits for."""
        found: set[str] = set()
        for broker in message.brokers:
            towards = self._neighbour_towards(broker)
            found.update(self._others("") if towards is None else [towards or self.name])
        bits, advertised = self.routing.bits, self.routing.advertisements.overlapping_hops
        mask = 0
        changes: list[Begun | Ended] = [*message.begun, *message.ended]
        for each in changes:
            mask |= advertised(each.filter)
        found.update(bits.names(mask & bits.all_neighbours))
        if mask & ~bits.all_neighbours:
            found.add(self.name)
        return found

    def _conclude(self, message: Decide) -> None:
        tx = message.tx
        self._mark(message)
        self._forget_reads(tx)
        for key in [key for key, flood in self.state.floods.items() if flood.tx == tx]:
            del self.state.floods[key]
        local = self.state.locals.get(tx)
        if local is not None:
            self._finish(local, message)
            del self.state.locals[tx]
            if message.committed:
                staged = {c: part.staged for c, part in local.parts.items() if part.staged}
                if staged:
                    self.state.staged[tx] = staged
        for key in [key for key, asked in self.state.asked.items() if asked.tx == tx]:
            del self.state.asked[key]
        coordination = self.state.coordinations.get(tx)
        if coordination is not None:
            coordination.outcome = COMMITTED if message.committed else ABORTED
            coordination.reason = message.reason
            if not message.committed:
                self._report(coordination)
            else:
                at = self.now + (local.timeout_s if local is not None else GRACE_S)
                self._effects.timers.append(SetTimer(("transaction", tx), at))

    def _mark(self, message: Decide) -> None:
        raise NotImplementedError

    def _forget_reads(self, tx: str) -> None:
        raise NotImplementedError

    def _is_touched(self, message: Decide) -> bool:
        raise NotImplementedError

    def progress(self, active: Active) -> None:
        """Tell who told us, once the decision is effective here and behind us. If all whom it
        concerns are done before the others, say that: the coordinator waits for no more."""
        if active.cutting or active.echoed:
            return
        tx = active.decide.tx
        if active.missing:
            if not active.concerned and not active.reported:
                active.reported = True
                if active.source:
                    self._send(active.source, Echoed(tx, "effective"))
                elif self.root == self.name and not active.late:
                    self._post(self._home(tx), Effective(tx))
            return
        active.echoed = active.reported = True
        if active.source:
            self._send(active.source, Echoed(tx, "decide"))
        elif active.late:
            self._settled_here(tx)
        elif self.root == self.name:
            self._flood(Settle(tx), "")
            self._settled_here(tx)

    def _over(self, tx: str) -> None:
        active = self.state.active.pop(tx, None)
        self._release(tx)
        if active is not None and active.decide.committed:
            decide = active.decide
            self._effects.settled += [begun.op for begun in decide.begun]
            self._effects.settled += [ended.op for ended in decide.ended]
            for ended in decide.ended:
                if ended.op not in self.routing.lost_starts:  # it does not come again
                    self.routing.lost_ends.pop(ended.op, None)

    def _settle(self, message: Settle, source: Hop) -> None:
        self._flood(message, source.name)
        self._settled_here(message.tx)
        if message.tx in self.state.bases or message.tx in self.state.locals:
            self._post(self.root, Query(message.tx, self.name))

    def _settled_here(self, tx: str) -> None:
        """The decision has taken effect everywhere; but if nobody waited for us, we may have to
        cut yet, and it is not effective before. What begins may have ended meanwhile, elsewhere,
        and never come: see `due`."""
        active = self.state.active.get(tx)
        if active is not None and active.cutting:
            self._effects.doubts |= not active.settled
            active.settled = True
            return
        self._over(tx)
        coordination = self.state.coordinations.get(tx)
        if coordination is not None:
            self._report(coordination)

    def _verdict(self, letter: Verdict) -> None:
        """Decided and settled while we were away."""
        tx = letter.tx
        for asked in self.state.asked.values():
            if asked.tx == tx and asked.requester:  # there it may not be known yet
                told = Reply(asked.op, (), asked.reached, "the transaction is over")
                self._send(asked.requester, told)
        # Those behind us may have missed the decision with us: then they ask for themselves.
        self._flood(Settle(tx), self._neighbour_towards(self.root) or "")
        local = self.state.locals.get(tx)
        if letter.committed and local is not None and tx not in self.state.active:
            self._obey_late(local, letter)
            return
        if tx not in self.state.active:
            self._conclude(Decide(tx, letter.number, letter.committed, letter.reason))
        self.state.locals.pop(tx, None)
        self._settled_here(tx)

    def _obey_late(self, local: Local, letter: Verdict) -> None:
        """Clients of ours have part in what was committed: what they did takes effect now."""
        parts = [self.contribution(local, client) for client in local.parts]
        begun = tuple(each for part in parts for each in part.begun)
        ended = tuple(each for part in parts for each in part.ended)
        pubends = tuple(dict.fromkeys(part.pubend for part in parts if part.pubend))
        decide = Decide(local.tx, letter.number, True, letter.reason, begun, ended, pubends)
        added = [
            (Confirmed(OpId(client, part.epoch, number)), Hop.client(client))
            for client, part in local.parts.items()
            for number in (*part.begun, *part.advertised)
        ]
        active = self.state.active[local.tx] = Active(decide, "", late=True)
        self._conclude(decide)
        self._effects.routes += added
        self._cut_if_touched(active)
        self.progress(active)

    def _cut_if_touched(self, active: Active) -> None:
        """Our pubend has to cut: until then nothing begins there, or ends, for good."""
        if self._is_touched(active.decide):
            active.cutting = True
            self.routing.uncut |= {each.op: None for each in active.decide.begun}
            self.routing.unended |= {each.op: None for each in active.decide.ended}


def _too_many_events(contributions: tuple[Contribution, ...]) -> str:
    events: dict[str, int] = {}
    for each in contributions:
        events[each.pubend] = events.get(each.pubend, 0) + each.events
    for pubend, count in events.items():
        if count > MOST_EVENTS:
            text = f"it publishes {count} events at {pubend}, and a transaction has at most"
            return f"{text} {MOST_EVENTS} in one place: publish them in several"
    return ""


def _clash(reading: Submission, other: Submission) -> bool:
    """Could one change what the other, which is being validated, has read?"""
    bodies = [body for one in reading.contributions for body in one.invited]
    filters: list[Filter] = []
    for one in other.contributions:
        filters += [each.filter for each in one.begun] + [each.filter for each in one.ended]
    read = [decode_attributes(body) for body in bodies]
    return any(filter.matches(attributes) for filter in filters for attributes in read)
