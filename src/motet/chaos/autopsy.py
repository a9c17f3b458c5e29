"""What the folders of stopped brokers hold: the strongest witness there is.

Each broker is rebuilt from its folder alone, as its next process would be, and joined to its
neighbours once more, in memory. Since everything was at rest before they stopped, nobody may
learn anything new from that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path

from motet.broker.core import BrokerCore
from motet.broker.recovery import read_core
from motet.errors import MotetError
from motet.protocol.contract import Dialled, Input, Output, Received
from motet.testing.checkers.verdict import Verdict
from motet.testing.history import History, Operation
from motet.testing.topology import Tree

MOST_STEPS = 100_000


def rebuild(folders: Mapping[str, Path], verdict: Verdict) -> dict[str, BrokerCore]:
    """A core per broker; a folder that cannot be read is a violation."""
    cores: dict[str, BrokerCore] = {}
    for name, folder in folders.items():
        try:
            cores[name] = read_core(folder)
        except MotetError as problem:
            verdict.expect(False, "{} cannot be rebuilt: {}", name, problem)
        else:
            verdict.expect(True, "")
    return cores


def rejoin(cores: Mapping[str, BrokerCore], tree: Tree, verdict: Verdict) -> None:
    """Let neighbours greet each other; nothing durable may change by it."""
    before = {name: core.durable.digest() for name, core in cores.items()}
    _Meeting(cores, tree, verdict).hold()
    for name, core in cores.items():
        verdict.expect(
            core.durable.digest() == before[name],
            "{} learned something new when its neighbours greeted it after the end",
            name,
        )


class _Meeting:
    """All links at once, over connections that are lists."""

    def __init__(self, cores: Mapping[str, BrokerCore], tree: Tree, verdict: Verdict) -> None:
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
            except MotetError as problem:  # it sees itself that it cannot go on from this folder
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


def check_losses(history: History, cores: Mapping[str, BrokerCore], verdict: Verdict) -> int:
    """Everything acknowledged is in the folder of the broker that acknowledged it: what was
    asked for is there, what was taken back is not. The number of operations lost."""
    lost = 0
    for session in history.living:
        sessions = cores[session.broker].durable.sessions
        verdict.expect(
            sessions.current(session.client, session.epoch) is not None,
            "the session {} of {} is not in the folder of {}",
            session.epoch,
            session.client,
            session.broker,
        )
        for operation in session.operations.values():
            before = len(verdict.violations)
            _check_operation(operation, cores[session.broker], verdict)
            lost += len(verdict.violations) - before
    return lost


def _check_operation(operation: Operation, core: BrokerCore, verdict: Verdict) -> None:
    if operation.answer != "Done":
        return
    state = core.durable.routing.state
    target = operation.target or operation
    table = state.subscriptions if target.kind == "subscribe" else state.advertisements
    broker = operation.session.broker
    if operation.target is not None:
        verdict.expect(
            target.id not in table,
            "{} was acknowledged, but the folder of {} still holds its target",
            operation,
            broker,
        )
    elif not operation.gone:
        verdict.expect(
            operation.id in table,
            "{} was acknowledged, but is not in the folder of {}",
            operation,
            broker,
        )
