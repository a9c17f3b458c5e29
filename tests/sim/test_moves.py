"""The tables of legal moves are true: what they promise is the state in which the next event finds
the transaction, and the state that it has when the fact has been applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from motet.broker.core.durable import Durable
from motet.protocol.contract import Fact
from motet.protocol.transactions import coordinator, cutter, decisions, root
from motet.protocol.transactions.machine import Transactions
from motet.protocol.transactions.state import Move, Moves
from motet.testing.scenario import replay
from motet.testing.simulation import simulate

SCENARIOS = sorted(Path(__file__).parents[1].glob("scenarios/tx-*.txt"))
SEEDS = (0, 1)
PHASES: dict[str, tuple[Moves[Any, Any], Callable[[Transactions, str], Move]]] = {
    "coordinator": (coordinator.MOVES, lambda machine, tx: machine.coordinator.phase(tx)),
    "cutter": (cutter.MOVES, lambda machine, tx: machine.cutter.phase(tx)),
    "decisions": (decisions.MOVES, lambda machine, tx: machine.decisions.phase(tx)),
    "root": (root.MOVES, lambda machine, tx: machine.decider.phase(tx)),
}


class Watch:
    """Compares, at all brokers, real states with those that the tables have promised."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.kept: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self._names = {id(moves): name for name, (moves, _) in PHASES.items()}
        self._promised: dict[Durable, dict[tuple[str, str], tuple[Move, str]]] = {}
        self._applying: list[Durable] = []
        self._patch(patch)

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        step, apply = Moves.next, Durable.apply

        def watched_next(moves: Moves[Any, Any], state: Move, event: Move, name: object) -> Any:
            after = step(moves, state, event, name)
            self._note(moves, state, event, str(name), after)
            return after

        def watched_apply(durable: Durable, fact: Fact) -> Any:
            self._applying.append(durable)
            try:
                return apply(durable, fact)
            finally:
                self._compare(self._applying.pop())

        patch.setattr(Moves, "next", watched_next)
        patch.setattr(Durable, "apply", watched_apply)

    def _note(
        self, moves: Moves[Any, Any], state: Move, event: Move, tx: str, after: Move | None
    ) -> None:
        table = self._names.get(id(moves))
        if table is None or not self._applying:
            return
        promised = self._promised.setdefault(self._applying[-1], {})
        self._check(table, promised.get((table, tx)), state)
        cause = f"{state.name} + {event.name}"
        promised[table, tx] = (self._forgotten(moves, after or state), cause)

    @staticmethod
    def _forgotten(moves: Moves[Any, Any], state: Move) -> Move:
        """A state without events is left at once: the transaction is forgotten then."""
        return state if moves.rows[state] else next(iter(moves.rows))

    def _compare(self, durable: Durable) -> None:
        for (table, tx), promise in self._promised.get(durable, {}).items():
            self._check(table, promise, PHASES[table][1](durable.transactions, tx))

    def _check(self, table: str, promise: tuple[Move, str] | None, state: Move) -> None:
        if promise is None or promise[0] is state:
            self.kept[table] += 1
        else:
            wanted, cause = promise
            self.broken[f"{table}: {cause} = {wanted.name}, but it is {state.name}"] += 1


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def test_scenarios_keep_what_the_tables_promise(watch: Watch) -> None:
    for path in SCENARIOS:
        replay(path)
    assert not watch.broken
    assert set(watch.kept) == set(PHASES)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_simulator_keeps_what_the_tables_promise(watch: Watch, seed: int) -> None:
    simulate(seed, "transactions")
    assert not watch.broken
    assert set(watch.kept) == set(PHASES)
