"""The results of all checkers for a run, and its statistics, as one report.

The folders of the stopped brokers are the strongest evidence. Each broker is rebuilt from its
folder alone, as its next process would be, and joined to its neighbours once more, in memory.
Since everything was at rest before they stopped, this must not change the state of any broker.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from motet.audit.records import DONE, OperationRecord
from motet.broker.folder.journal import VOLATILE
from motet.broker.folder.recovery import read_core
from motet.chaos.chronicle import Chronicle
from motet.chaos.plan import ChaosPlan
from motet.errors import MotetError
from motet.protocol.contract import Dialled, Input, Output, Received
from motet.testing.brokers import Core
from motet.testing.checkers import copies, moves, routing
from motet.testing.checkers.by_history import CHECKERS
from motet.testing.checkers.moves import GIVEN_UP, OVER
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History
from motet.testing.topology import Tree

MOST_STEPS = 100_000


def rebuild(folders: Mapping[str, Path], verdict: CheckResult) -> dict[str, Core]:
    """A core per broker; a folder that cannot be read is a violation."""
    cores: dict[str, Core] = {}
    for name, folder in folders.items():
        try:
            cores[name] = read_core(folder)
        except MotetError as problem:
            verdict.expect(False, "{} cannot be rebuilt: {}", name, problem)
        else:
            verdict.expect(True, "")
    return cores


def rejoin(cores: Mapping[str, Core], tree: Tree, verdict: CheckResult) -> None:
    """Let neighbours greet each other; no durable state may change."""
    before = {name: core.durable.digest() for name, core in cores.items()}
    _Meeting(cores, tree, verdict).hold()
    for name, core in cores.items():
        verdict.expect(
            core.durable.digest() == before[name],
            "{} learned something new when its neighbours greeted it after the end",
            name,
        )


class _Meeting:
    """All links at once, over in-memory connections."""

    def __init__(self, cores: Mapping[str, Core], tree: Tree, verdict: CheckResult) -> None:
        self._cores = cores
        self._verdict = verdict
        self._now = max(core.durable.now for core in cores.values())
        self._inputs: deque[tuple[str, Input]] = deque()
        self._ends: dict[tuple[str, int], tuple[str, int]] = {}
        for number, (one, two) in enumerate(tree.edges, 1):
            self._ends[one, number], self._ends[two, number] = (two, number), (one, number)
            self._inputs.append((one, Dialled(number, two)))

    def hold(self) -> None:
        for _ in range(MOST_STEPS):
            if not self._inputs:
                return
            name, given = self._inputs.popleft()
            try:
                output = self._cores[name].step(given, self._now)
            except MotetError as problem:  # the core rejects its own folder
                self._verdict.expect(False, "{}: {}", name, problem)
            else:
                self._carry(name, output)
        self._verdict.expect(False, "the brokers never stop greeting each other")

    def _carry(self, name: str, output: Output) -> None:
        for connection, frame in output.send:
            other, number = self._ends[name, connection]
            self._inputs.append((other, Received(number, frame)))
        for close in output.close:
            other, _ = self._ends[name, close.connection]
            self._verdict.expect(False, "{} refuses {}: {}", name, other, close.text)


def check_losses(history: History, cores: Mapping[str, Core], verdict: CheckResult) -> int:
    """Check that everything acknowledged is in the folder of the broker that acknowledged it, and
    everything removed is not. Returns the number of lost operations."""
    lost = 0
    for session in history.living:
        sessions = cores[session.home].durable.sessions
        if not verdict.holds(sessions.current(session.client, session.epoch) is not None):
            verdict.violated(
                f"the session {session.epoch} of {session.client} is not in the folder of "
                f"{session.home}"
            )
        for operation in session.operations.values():
            before = len(verdict.violations)
            _check_operation(operation, cores[session.home], verdict)
            lost += len(verdict.violations) - before
    return lost


def _check_operation(operation: OperationRecord, core: Core, verdict: CheckResult) -> None:
    if operation.answer != "Done":
        return
    state = core.durable.routing.state
    target = operation.target or operation
    table = state.subscriptions if target.kind == "subscribe" else state.advertisements
    broker = operation.session.home
    if operation.target is not None:
        if not verdict.holds(target.id not in table):
            verdict.violated(
                f"{operation} was acknowledged, but the folder of {broker} still holds its target"
            )
    elif not operation.gone and not verdict.holds(operation.id in table):
        verdict.violated(f"{operation} was acknowledged, but is not in the folder of {broker}")


SHOWN = 10
"""Violations of one guarantee that are shown; the rest usually follow from them."""


class ChaosViolation(Struct, frozen=True):
    guarantee: str
    detail: str


class ChaosReport(Struct, frozen=True):
    plan: ChaosPlan
    faults: dict[str, int]
    operations: dict[str, int]
    events: dict[str, int]
    sessions: dict[str, int]
    delivery: dict[str, int]
    """Of exactly-once events; empty if there were none."""
    longest_silence_s: float
    """The longest time between two exactly-once events at one subscriber."""
    recoveries: int
    longest_outage_s: float
    checked: dict[str, int]
    violated: dict[str, int]
    """How often, by violated guarantee."""
    violations: tuple[ChaosViolation, ...]
    transactions: dict[str, int] = {}
    """Empty if there were none."""
    moves: dict[str, int] = {}
    """Empty if clients do not move."""
    longest_transit_s: float = 0.0
    """From when a client was sent to another broker until it was welcome somewhere."""

    @property
    def kept(self) -> bool:
        return not self.violated

    def to_json(self) -> dict[str, Any]:
        return {
            "brokers": self.plan.brokers,
            "shape": self.plan.shape,
            "profile": self.plan.profile,
            "seconds": self.plan.seconds,
            "seed": self.plan.seed,
            "durability": self.plan.durability,
            "faults": self.faults,
            "recoveries": self.recoveries,
            "longest_outage_s": round(self.longest_outage_s, 3),
            "operations": self.operations,
            "events": self.events,
            "sessions": self.sessions,
            "delivery": self.delivery,
            "transactions": self.transactions,
            "moves": self._moves(),
            "longest_silence_s": round(self.longest_silence_s, 3),
            "checked": self.checked,
            "violations": [
                {"guarantee": violation.guarantee, "detail": violation.detail}
                for violation in self.violations
            ],
            "kept": self.kept,
        }

    def _moves(self) -> dict[str, float]:
        if not self.moves:
            return {}
        return {**self.moves, "in_transit_longest_s": round(self.longest_transit_s, 3)}


def judge(plan: ChaosPlan, chronicle: Chronicle, folders: Mapping[str, Path]) -> ChaosReport:
    """`folders` are those of the stopped brokers."""
    history = chronicle.history
    verdicts = [CheckResult(guarantee, 0, [detail]) for guarantee, detail in history.oddities]
    durability, lost = CheckResult("durability", chronicle.resumed), 0
    if plan.durability != VOLATILE:  # else there is no folder to check
        cores = rebuild(folders, durability)
        if len(cores) == len(folders):
            lost = check_losses(history, cores, durability)
            rejoin(cores, history.tree, durability)
            verdicts.append(routing.check(history, cores))
            verdicts.append(copies.check(history, cores))
            verdicts.append(moves.check_rest({n: _leftovers(core) for n, core in cores.items()}))
    found = {verdict.guarantee: verdict for verdict in (c.check(history) for c in CHECKERS)}
    verdicts += [durability, *found.values(), *chronicle.verdicts, CheckResult("settles", 1)]
    checked: Counter[str] = Counter()
    details: dict[str, list[str]] = {}
    for verdict in verdicts:
        checked[verdict.guarantee] += verdict.checked
        if verdict.violations:
            details.setdefault(verdict.guarantee, []).extend(verdict.violations)
    return ChaosReport(
        plan=plan,
        faults=dict(sorted(chronicle.faults.items())),
        operations=_operations(chronicle, lost + chronicle.lost_operations),
        events=_events(chronicle, found["completeness"]),
        sessions={
            "opened": len(history.sessions),
            "resumed": chronicle.resumed,
            "lost": chronicle.lost_sessions,
        },
        delivery=_delivery(chronicle, found) if plan.sure else {},
        transactions=chronicle.transactions,
        moves=_moves(chronicle) if plan.moves else {},
        longest_transit_s=chronicle.longest_transit_s,
        longest_silence_s=_longest_silence_s(chronicle),
        recoveries=chronicle.recoveries,
        longest_outage_s=chronicle.longest_outage_s,
        checked=dict(sorted(checked.items())),
        violated={guarantee: len(found) for guarantee, found in details.items()},
        violations=tuple(
            ChaosViolation(guarantee, detail)
            for guarantee, found in details.items()
            for detail in found[:SHOWN]
        ),
    )


def _leftovers(core: Core) -> list[str]:
    """What the rooms of a broker keep of moves."""
    rooms = (room for room in core.durable.rooms if hasattr(room, "leftovers"))
    return [text for room in rooms for text in room.leftovers()]


def _operations(chronicle: Chronicle, lost: int) -> dict[str, int]:
    made = [
        operation
        for session in chronicle.history.sessions
        for operation in session.operations.values()
    ]
    done = sum(operation.answer == "Done" for operation in made)
    answered = sum(bool(operation.answer) for operation in made)
    return {
        "asked": len(made),
        "acknowledged": done,
        "refused": answered - done,
        "unanswered": len(made) - answered,
        "lost": lost,
    }


def _events(chronicle: Chronicle, owed: CheckResult) -> dict[str, int]:
    history = chronicle.history
    fates = Counter(event.fate for event in history.events)
    return {
        "published": len(history.events),
        "accepted": fates["accepted"],
        "refused": fates["refused"],
        "unknown": fates["unknown"] + fates[""],
        "delivered": len(history.deliveries),
        "owed": owed.checked,
        "lost": len(owed.violations),
    }


def _delivery(chronicle: Chronicle, found: Mapping[str, CheckResult]) -> dict[str, int]:
    history, owed = chronicle.history, found["exactly-once"]
    sure = [event for event in history.events if event.sure]
    return {
        "published": len(sure),
        "durable": sum(event.fate == "accepted" for event in sure),
        "owed": owed.checked,
        "delivered": sum(delivery.tick > 0 for delivery in history.deliveries),
        "lost": len(owed.violations),
        "doubled": len(found["duplicates"].violations),
        "out_of_order": len(found["order"].violations),
        "nacks": sum(chronicle.nacks.values()),
    }


def _moves(chronicle: Chronicle) -> dict[str, int]:
    """Those that clients asked for, by their end; those that operators ordered; and how many were
    hit by a fault that was aimed at them, by the phase that it met."""
    history = chronicle.history
    ends = Counter(move.answer for move in history.moves)
    lost = sum(ends[name] for name in ("", GIVEN_UP, *OVER))
    orders = [answer for order in history.orders for answer in order.answers]
    struck = chronicle.struck
    return {
        "asked": len(history.moves),
        "done": ends[DONE],
        "refused": len(history.moves) - ends[DONE] - lost,
        "given_up": lost,
        "ordered": len(history.orders),
        "ordered_done": orders.count(""),
        "of_absent": sum(order.absent and order.answers == [""] for order in history.orders),
        **{f"struck_{phase.replace(' ', '_')}": struck[phase] for phase in sorted(struck)},
    }


def _longest_silence_s(chronicle: Chronicle) -> float:
    """Between two exactly-once events that one client received, whatever the faults."""
    last: dict[int, float] = {}
    longest_s = 0.0
    for delivery in chronicle.history.deliveries:
        if delivery.tick:
            before = last.get(delivery.instance, delivery.at)
            longest_s = max(longest_s, delivery.at - before)
            last[delivery.instance] = delivery.at
    return longest_s
