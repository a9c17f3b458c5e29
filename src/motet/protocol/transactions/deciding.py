"""The root: what is decided, and in which order.

What a coordinator's broker has collected, or of a plan the root itself, the root decides: it is the
one place whose absence may keep a transaction undecided, and the order in which it decides is the
order of all transactions, in every log. An isolated transaction is validated first; as long as that
takes, nothing is decided that could change what it has read.
"""

from __future__ import annotations

from motet.model import Filter, Hop, decode_attributes
from motet.protocol.contract import CancelTimer, SetTimer
from motet.protocol.transactions.collecting import RUNNING
from motet.protocol.transactions.effects import op_of
from motet.protocol.transactions.messages import (
    SAME_KEY,
    Contribution,
    Decide,
    Engaged,
    Open,
    Opening,
    Prepare,
    Query,
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
from motet.protocol.transactions.spreading import Spreading
from motet.protocol.transactions.state import (
    Flood,
    Gathering,
    Outcome,
    Submission,
    key_of,
)

MOST_OUTCOMES = 100_000
KEPT_S = 7 * 86_400.0
"""How long the root remembers what it has decided."""
MOST_EVENTS = 2048
"""Of one pubend in one transaction: subscribers get them at once, and must have room for them."""


class Deciding(Spreading):
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

    def _answered(self, flood: Flood) -> None:
        if flood.what == "opening":
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
