"""How everybody hears of what the root asks and decides, and the root that all have.

Questions of isolated transactions flood and ebb. A decision floods, takes effect where it comes,
is cut for by every pubend that it touches, and echoes from there; when all have echoed the root
has it settle.
"""

from __future__ import annotations

from motet.model import Hop, OpId
from motet.protocol.contract import SetTimer
from motet.protocol.routing.messages import Confirmed
from motet.protocol.transactions.collecting import ABORTED, COMMITTED, Collecting
from motet.protocol.transactions.messages import (
    Begun,
    Decide,
    Echoed,
    Effective,
    Ended,
    Opening,
    Prepare,
    Query,
    Reply,
    Settle,
    Verdict,
)
from motet.protocol.transactions.participating import GRACE_S
from motet.protocol.transactions.state import Active, Flood, Local


class Spreading(Collecting):
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
        else:
            self._answered(flood)

    def _answered(self, flood: Flood) -> None:
        """At the root: everybody has."""
        raise NotImplementedError

    # ── decisions ────────────────────────────────────────────────────────────────────────

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
        concerned = self._concerned(message) if others or source else ()
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

    def cut_told(self, tx: str) -> None:
        """Where subscriptions begin and end is on its way: now all behind us may be told that the
        cut is made. In this order, so that whoever hears that all are made knows all of them."""
        active = self.state.active.get(tx)
        if active is not None:
            self.progress(active)
        if active is not None and active.settled:
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
