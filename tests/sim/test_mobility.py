"""Whole overlays whose clients move: nothing is violated, and clients really move."""

from __future__ import annotations

from functools import cache

import pytest

from motet.errors import MisuseError
from motet.protocol.mobility.soft import SoftMobility
from motet.protocol.room import Objection
from motet.testing.cluster import QUIET_S, Cluster
from motet.testing.faults import STEP_FAULTS, profile
from motet.testing.movers import Operator
from motet.testing.simulation import OF_MOVES, Result, crash_everywhere, observe, run_seeds

SEEDS = range(1000, 1008)
OF_FEW_STEPS = 2


@cache
def handful(profile: str) -> Result:
    return run_seeds(SEEDS, profile)


@pytest.mark.parametrize("profile", ["moves", "mobility"])
def test_a_handful_of_seeds(profile: str) -> None:
    result = handful(profile)
    assert not result.violations, "\n".join(result.complaints())
    for guarantee in (*OF_MOVES, "exactly-once", "completeness", "total-order", "routing"):
        assert result.checked[guarantee] >= len(SEEDS), guarantee
    assert result.moves["Done"] > 10 * len(SEEDS), result.moves
    assert result.moves["ordered Done"] > len(SEEDS), result.moves


def test_most_moves_succeed_where_nothing_fails() -> None:
    """One move in five has next to no time. Those to unknown brokers do not count."""
    moves = handful("moves").moves
    others = ("ordered ", "of ", "MisuseError")
    asked = sum(count for answer, count in moves.items() if not answer.startswith(others))
    assert moves["Done"] > 0.7 * asked, moves


def digests(cluster: Cluster) -> dict[str, str]:
    """The durable state of all brokers."""
    cores = {name: broker.core for name, broker in cluster.brokers.items()}
    return {name: core.durable.digest() for name, core in cores.items() if core is not None}


@pytest.mark.parametrize("seed", [1, 5])
def test_after_a_refused_move_nothing_is_different(seed: int) -> None:
    """With clients of all kinds, hosted ones, too: the target is full, or does not exist."""
    cluster = Cluster(seed, profile("moves"), needs={"chaos_s": 1.5, "durable": 0.5, "hosted": 2})
    cluster.run()
    assert not cluster.history.oddities
    before, asked = digests(cluster), len(cluster.history.moves)
    for broker in cluster.brokers.values():
        assert broker.core is not None
        for room in broker.core._rooms:
            if isinstance(room, SoftMobility):
                room.objectors.append(lambda _: Objection("MoveRefused", "it is full"))
    for number, client in enumerate(each for each in cluster.clients if each.open):
        others = [name for name in cluster.tree.brokers if name != client.home]
        to = ("B99", others[0], others[-1])[number % 3]
        if client.mover is not None:
            assert client.mover.move(to, 5.0)
        else:
            Operator(cluster, cluster.brokers[client.home], client.name, to).ask(5.0)
    assert cluster.agenda.run(cluster.agenda.now + QUIET_S)
    answers = [each.answer for each in cluster.history.moves[asked:]]
    answers += [each.answers[0] for each in cluster.history.orders[-2:]]
    assert set(answers) == {"MoveRefused", "MisuseError"}
    assert digests(cluster) == before


def test_hosted_clients_move_with_their_state() -> None:
    """Enough of everything happens in a few seeds that the checkers look at."""
    starts = handled = 0
    for seed in range(1000, 1003):
        history, verdicts = observe(seed, "moves", hosted=2, hosted_s=0.15)
        assert not [each for verdict in verdicts for each in verdict.violations]
        for hosted in history.hosted.values():
            starts += sum(start.number > 0 for start in hosted.starts)
            handled += len(hosted.handled)
            brokers = {start.broker for start in hosted.starts}
            assert len(brokers) > 1 or len(history.tree.brokers) < 3, "it never moved"
    assert starts > 10
    assert handled > 100


def test_a_crash_at_every_step() -> None:
    result = crash_everywhere(3, "moves", stride=47)
    assert not result.violations, "\n".join(result.complaints())
    assert result.faults["kill"] == result.seeds > 30
    assert result.moves["Done"] > result.seeds


@pytest.mark.parametrize(("fault", "stride"), [(each, 5) for each in STEP_FAULTS])
def test_a_fault_at_each_message_of_a_move(fault: str, stride: int) -> None:
    """A broker that gets, decides or sends something of a move is killed, paused, cut off, given up
    or comes back empty; its client goes, is silent, or has a namesake. No other fault happens."""
    result = crash_everywhere(OF_FEW_STEPS, "moves", fault, stride=stride, of_moves=True)
    assert not result.violations, "\n".join(result.complaints())
    assert result.faults[fault] == result.seeds
    assert result.checked["copies"]
    assert result.checked["moves"]


def test_an_unknown_fault_is_named() -> None:
    with pytest.raises(MisuseError, match="there are kill, amnesia, cut"):
        crash_everywhere(3, "moves", "rain")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("fault", STEP_FAULTS)
def test_a_fault_at_each_message_of_many_moves(fault: str, seed: int) -> None:
    result = crash_everywhere(seed, "moves", fault, of_moves=True)
    assert not result.violations, "\n".join(result.complaints())


@pytest.mark.soak
@pytest.mark.parametrize("profile", ["moves", "mobility"])
def test_many_seeds(profile: str) -> None:
    result = run_seeds(range(2000, 3000), profile, processes=2)
    assert not result.violations, "\n".join(result.complaints())
