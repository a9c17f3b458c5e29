"""After quiet, every broker's tables equal those of a one-broker oracle, seen from that broker.

The oracle knows only the tree and what the living sessions have in force; it uses `overlap` and
`covers` of the model, never the index. With covering on, tables are not unique: then the entries
sent over a link must cover all that are needed beyond it, include no other, and equal those that
the neighbour holds. With covering that takes back, none of them covers another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from motet.audit.records import OperationRecord
from motet.model import Filter, Hop, OpId, covers, overlap
from motet.model.coverage import RETRACT
from motet.protocol.routing.state import Table
from motet.testing.checkers.result import BrokerState, CheckResult
from motet.testing.history import History

Rows = dict[OpId, Hop]


def check(history: History, cores: Mapping[str, BrokerState]) -> CheckResult:
    return _RoutingCheck(history, cores).run()


@dataclass(slots=True)
class _RoutingCheck:
    history: History
    cores: Mapping[str, BrokerState]
    verdict: CheckResult = field(default_factory=lambda: CheckResult("routing"))
    _answers: dict[tuple[bool, Filter, Filter], bool] = field(default_factory=dict)

    def run(self) -> CheckResult:
        in_force = self.history.in_force()
        advertisements = [o for o in in_force if o.kind == "advertise"]
        subscriptions = [o for o in in_force if o.kind == "subscribe"]
        for name, core in self.cores.items():
            self._check_clients(name, core)
            self._check_waits(name, core)
            if not self.history.covering:
                state = core.durable.routing.state
                advertised = self._flooded(name, advertisements)
                subscribed = self._followed(name, subscriptions, advertisements)
                self._same(name, "SRT", advertised, _rows(state.advertisements))
                self._same(name, "PRT", subscribed, _rows(state.subscriptions))
        for one, two in self.history.tree.edges:
            self._check_edge(one, two, advertisements, subscriptions)
            self._check_edge(two, one, advertisements, subscriptions)
        if self.history.covering:
            self._check_edges_of_clients(in_force)
        return self.verdict

    # ── exactly ──────────────────────────────────────────────────────────────────────────

    def _flooded(self, broker: str, advertisements: Iterable[OperationRecord]) -> Rows:
        return {a.id: self.history.source_at(broker, a.session) for a in advertisements}

    def _followed(
        self,
        broker: str,
        subscriptions: Iterable[OperationRecord],
        advertisements: list[OperationRecord],
    ) -> Rows:
        path = self.history.tree.path
        return {
            s.id: self.history.source_at(broker, s.session)
            for s in subscriptions
            if s.session.home == broker
            or any(
                broker in path(s.session.home, a.session.home)
                for a in advertisements
                if self._overlap(s, a)
            )
        }

    def _same(self, broker: str, table: str, wanted: Rows, found: Rows) -> None:
        for op, hop in wanted.items():
            have = found.get(op)
            if not self.verdict.holds(have == hop):
                self.verdict.violated(
                    f"{table} of {broker}: {op} should come from {hop}, not from {have}"
                )
        for op in found:
            self.verdict.expect(op in wanted, "{} of {}: {} should not be there", table, broker, op)

    def _check_clients(self, broker: str, core: BrokerState) -> None:
        found = core.durable.routing.state.clients
        wanted = {
            (session.client, session.epoch): self.history.source_at(broker, session)
            for session in self.history.living
        }
        for key in dict.fromkeys((*wanted, *found)):
            if not self.verdict.holds(wanted.get(key) == found.get(key)):
                self.verdict.violated(
                    f"CRT of {broker}: {'/'.join(key)} should be at {wanted.get(key)}, not at "
                    f"{found.get(key)}"
                )

    def _check_waits(self, broker: str, core: BrokerState) -> None:
        durable = core.durable
        for wait in durable.routing.state.waits.values():
            self.verdict.expect(False, "{} still waits for echoes of {}", broker, wait.op)
        for name, link in core.links.items():
            if not self.verdict.holds(link.up and not link.ledger.outbox):
                self.verdict.violated(
                    f"the link of {broker} to {name} is {link.soft.phase.value} with "
                    f"{len(link.ledger.outbox)} unacknowledged messages"
                )
        if not self.verdict.holds(
            sorted((s.client, s.epoch) for s in durable.sessions)
            == sorted((s.client, s.epoch) for s in self.history.living if s.home == broker)
        ):
            self.verdict.violated(f"the sessions of {broker} are not those of its clients")

    # ── by meaning ───────────────────────────────────────────────────────────────────────

    def _check_edge(
        self,
        near: str,
        far: str,
        advertisements: list[OperationRecord],
        subscriptions: list[OperationRecord],
    ) -> None:
        """Check the entries that cross one edge in one direction."""
        behind = set(self.history.tree.behind(near, far))
        here = [a for a in advertisements if a.session.home not in behind]
        there = [a for a in advertisements if a.session.home in behind]
        followers = [
            s
            for s in subscriptions
            if s.session.home not in behind and any(self._overlap(s, a) for a in there)
        ]
        near_state = self.cores[near].durable.routing.state
        far_state = self.cores[far].durable.routing.state
        pairs = (
            ("SRT", here, near_state.advertisements, far_state.advertisements),
            ("PRT", followers, near_state.subscriptions, far_state.subscriptions),
        )
        bit = near_state.bits.bit(Hop.broker(far))
        for name, wanted, ours, theirs in pairs:
            sent = {entry.id: entry.filter for entry in ours if entry.sent & bit}
            held = {e.id: e.filter for e in theirs.from_source(Hop.broker(near))}
            if not self.verdict.holds(sent == held):
                self.verdict.violated(
                    f"{name}: {near} has sent {_names(sent)} to {far}, but {far} has {_names(held)}"
                )
            if self.history.covering:
                self._check_meaning(f"{name} from {near} to {far}", wanted, sent)
            if self.history.covering == RETRACT:
                self._check_narrow(f"{name} from {near} to {far}", sent)

    def _check_meaning(
        self, what: str, wanted: list[OperationRecord], sent: dict[OpId, Filter]
    ) -> None:
        ids = {operation.id for operation in wanted}
        for op in sent:
            self.verdict.expect(op in ids, "{}: {} is not needed", what, op)
        for operation in wanted:
            assert operation.filter is not None
            if not self.verdict.holds(
                operation.id in sent
                or any(self._covers(wide, operation.filter) for wide in sent.values())
            ):
                self.verdict.violated(f"{what}: no entry that was sent covers {operation}")

    def _check_narrow(self, what: str, sent: dict[OpId, Filter]) -> None:
        """No entry is left that a wider one covers."""
        for op, narrow in sent.items():
            wider = [o for o, wide in sent.items() if o != op and self._covers(wide, narrow)]
            self.verdict.expect(not wider, "{}: {} is covered by {}", what, op, wider)

    def _check_edges_of_clients(self, in_force: list[OperationRecord]) -> None:
        """A client's own broker holds all its operations, covered or not, and no others."""
        for name, core in self.cores.items():
            state = core.durable.routing.state
            for kind, table in (
                ("advertise", state.advertisements),
                ("subscribe", state.subscriptions),
            ):
                wanted = {
                    o.id: Hop.client(o.session.client)
                    for o in in_force
                    if o.kind == kind and o.session.home == name
                }
                found = {op: hop for op, hop in _rows(table).items() if not hop.is_broker}
                self._same(name, f"local {kind}", wanted, found)

    # ── the model's view ─────────────────────────────────────────────────────────────────

    def _overlap(self, one: OperationRecord, two: OperationRecord) -> bool:
        assert one.filter is not None
        assert two.filter is not None
        key = (False, one.filter, two.filter)
        if key not in self._answers:
            self._answers[key] = overlap(one.filter, two.filter)
        return self._answers[key]

    def _covers(self, wide: Filter, narrow: Filter) -> bool:
        key = (True, wide, narrow)
        if key not in self._answers:
            self._answers[key] = covers(wide, narrow)
        return self._answers[key]


def _rows(table: Table) -> Rows:
    return {entry.id: entry.source for entry in table}


def _names(sent: dict[OpId, Filter]) -> str:
    return ", ".join(map(str, sent)) or "nothing"
