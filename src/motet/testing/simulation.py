"""Runs seeds: one cluster each, all checkers on its history, one report for all.

simulate(7, "lossy")            one seed
run_seeds(range(1000))          many, over several processes if asked
tell_story(7, "lossy")          one seed, told step by step
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from motet.errors import MisuseError
from motet.matching import index as matching_index
from motet.matching import python_index
from motet.matching.python_index import surely_covers
from motet.protocol.delivery import machine as delivery_machine
from motet.protocol.link import machine as link_machine
from motet.testing.bugs.catalogue import MUTATIONS, Mutation, Patch, patched, planted
from motet.testing.checkers import convergence, copies, moves, routing
from motet.testing.checkers.by_history import CHECKERS
from motet.testing.checkers.result import BrokerState, CheckResult
from motet.testing.cluster import Cluster
from motet.testing.faults import DEFAULT_PROFILE, STEP_FAULTS, FaultMenu, profile
from motet.testing.history import History, write_history
from motet.testing.ordering import simulation as ordering
from motet.testing.ordering.history import OrderHistory
from motet.testing.ordering.plan import SMALL as SMALL_ORDERING
from motet.testing.ordering.rows import write_history as write_order_history
from motet.testing.ordering.world import World

OF_TRANSACTIONS = (
    "atomicity",
    "visibility",
    "transaction-order",
    "handover",
    "serializability",
    "durability",
    "convergence",
)
"""Guarantees that only overlays with a root give."""
OF_MOVES = ("moves", "copies", "checkpoints")
"""Guarantees about clients that move, and those that are hosted."""
OF_ORDERING = ("notification-order", "causality", "numbers")
"""Guarantees of order across topics."""
GUARANTEES = (
    "routing",
    "completeness",
    "exactly-once",
    "duplicates",
    "order",
    "total-order",
    "soundness",
    "effective",
    "answers",
    "sessions",
    *OF_TRANSACTIONS,
    *OF_MOVES,
    *OF_ORDERING,
    "replay",
    "invariants",
    "settles",
)
GUARANTEES_OF_OVERLAYS = tuple(each for each in GUARANTEES if each not in OF_ORDERING)
_surely_covers = lru_cache(maxsize=1 << 16)(surely_covers)
SMALL = {"clients": 4, "chaos_s": 1.2, "sync": 1.0, "weights": (4, 3, 3, 2, 2, 0.3, 0.3)}
"""The plan of runs that are repeated for every step: few events, many operations."""
FEW = 3
"""Messages that brokers keep for a neighbour that is away, where it is to be given up."""
SHOWN = 5
"""Violations of one guarantee that one seed reports; the others are usually consequences."""


class Violation(Struct, frozen=True):
    seed: int
    guarantee: str
    detail: str
    crash_at: int | None = None
    fault: str = "kill"


class Result(Struct, frozen=True):
    """The result of one seed, or of several together."""

    seeds: int
    steps: int
    faults: dict[str, int]
    checked: dict[str, int]
    violations: tuple[Violation, ...]
    trace_hash: str
    profile: str = DEFAULT_PROFILE
    transactions: dict[str, int] = {}
    """By kind and outcome."""
    moves: dict[str, int] = {}
    """By outcome."""
    ordering: dict[str, int] = {}
    """What happened to streams and publishers of the profile `ordering`."""
    story: tuple[str, ...] = ()

    def to_json(self, mutations: tuple[int, int] = (0, 0)) -> dict[str, Any]:
        """The JSON that every run of the simulator prints."""
        planted_count, caught = mutations
        return {
            "seeds": self.seeds,
            "steps": self.steps,
            "faults": self.faults,
            "checked": self.checked,
            "violations": [
                {"seed": v.seed, "guarantee": v.guarantee, "detail": v.detail}
                for v in self.violations
            ],
            "mutations": {"planted": planted_count, "caught": caught},
            "trace_hash": self.trace_hash,
            **({"transactions": self.transactions} if self.transactions else {}),
            **({"moves": self.moves} if self.moves else {}),
            **({"ordering": self.ordering} if self.ordering else {}),
        }

    def complaints(self) -> list[str]:
        """Every violation with the command that replays it."""
        return [
            f"seed {v.seed}: {v.guarantee}: {v.detail}\n"
            f"  {replay_command(v.seed, self.profile, v.crash_at, v.fault)}"
            for v in self.violations
        ]


def replay_command(
    seed: int, profile_name: str, crash_at: int | None = None, fault: str = "kill"
) -> str:
    command = f"motet sim --replay {seed} --profile {profile_name}"
    if crash_at is None:
        return command
    return f"{command} --crash-at {crash_at}" + (f" --fault {fault}" if fault != "kill" else "")


# ── one seed ─────────────────────────────────────────────────────────────────────────────


def simulate(
    seed: int,
    profile_name: str = DEFAULT_PROFILE,
    mutation: str | None = None,
    *,
    story: bool = False,
    crash_at: int | None = None,
    fault: str = "kill",
    history: str = "",
) -> Result:
    """Run one seed and check everything. The same arguments always give the same result.

    With `crash_at` the run is small and calm, and one broker dies in that very step, or whatever
    else is the `fault`; events are exactly-once if the profile has them. With `history`, add the
    history to that folder.
    """
    if profile(profile_name).ordering:
        return _simulate_ordering(
            seed, mutation, story=story, crash_at=crash_at, fault=fault, folder=history
        )
    with planted(mutation) if mutation else nullcontext() as bug, _no_collection():
        needs = _needs_of(bug)
        menu = replace(profile(profile_name), **needs.pop("menu", {}))
        if crash_at is not None:
            menu, needs = _small(profile_name, needs, fault)
        cluster = Cluster(seed, menu, needs=needs, story=story, crash_at=crash_at, fault=fault)
        with patched(_surroundings(cluster)):
            cluster.run()
            verdicts = _verdicts(cluster)
            if history:
                write_history(cluster.history, history, f"{profile_name}-{seed}")
            if not any(verdict.violations for verdict in verdicts):
                cluster.farewell()
                verdicts += [*_tables(cluster), *_oddities(cluster)]
    return _result(seed, profile_name, cluster, verdicts)


def _simulate_ordering(
    seed: int,
    mutation: str | None,
    *,
    story: bool,
    crash_at: int | None,
    fault: str,
    folder: str = "",
) -> Result:
    """The profile `ordering` has another world, and its own checkers."""
    if crash_at is not None and fault != "kill":
        raise MisuseError(f"profile ordering has no {fault!r} at a step, only kill")
    with planted(mutation) if mutation else nullcontext() as bug, _no_collection():
        world = _world_of_ordering(seed, bug, story=story, crash_at=crash_at)
        verdicts = ordering.verdicts(world)
        if folder:
            write_order_history(world.history, folder, f"ordering-{seed}")
    checked, found = _tally(verdicts, ordering.GUARANTEES)
    return Result(
        seeds=1,
        steps=world.trace.steps,
        faults=dict(sorted(world.faults.items())),
        checked=checked,
        violations=_violations(seed, found, crash_at, fault),
        trace_hash=world.trace.digest(),
        profile="ordering",
        ordering=ordering.counts(world),
        story=tuple(world.trace.story or ()),
    )


def _world_of_ordering(
    seed: int, bug: Mutation | None, *, story: bool = False, crash_at: int | None = None
) -> World:
    needs = dict(bug.needs) if bug is not None else {}
    menu = replace(profile("ordering"), **needs.pop("menu", {}))
    if crash_at is not None:
        menu, needs = ordering.calm(), {**needs, **SMALL_ORDERING}
    schedule = needs.pop("schedule", "")
    if schedule:
        return ordering.run_schedule(schedule, story=story)
    return ordering.run_world(seed, menu, needs, story=story, crash_at=crash_at)


def observe_ordering(
    seed: int, mutation: str | None = None
) -> tuple[OrderHistory, list[CheckResult]]:
    """Run one seed of the profile `ordering`; returns its history and the checkers' results."""
    with planted(mutation) if mutation else nullcontext() as bug, _no_collection():
        history = _world_of_ordering(seed, bug).history
        return history, [checker.check(history) for checker in ordering.CHECKERS]


def observe(
    seed: int,
    profile_name: str = DEFAULT_PROFILE,
    mutation: str | None = None,
    **changes: Any,
) -> tuple[History, list[CheckResult]]:
    """Run one seed, with changes to its plan; returns its history and the checkers' results."""
    with planted(mutation) if mutation else nullcontext() as bug, _no_collection():
        needs = _needs_of(bug) | changes
        menu = replace(profile(profile_name), **needs.pop("menu", {}))
        cluster = Cluster(seed, menu, needs=needs)
        with patched(_surroundings(cluster)):
            cluster.run()
        return cluster.history, [checker.check(cluster.history) for checker in CHECKERS]


def _needs_of(bug: Mutation | None) -> dict[str, Any]:
    """A bug needs hosted clients only if it says so."""
    return {"hosted": 0, **bug.needs} if bug is not None else {}


@contextmanager
def _no_collection() -> Iterator[None]:
    """A run keeps nearly all its objects until its end: collecting garbage earlier finds none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _surroundings(cluster: Cluster) -> list[Patch]:
    """Patches for one run only. Filters come from a small space, so results are cached."""
    return [
        Patch(link_machine, "CONTROL_CHUNK", cluster.plan.control_chunk),
        Patch(delivery_machine, "Limits", lambda: cluster.plan.limits),
        Patch(matching_index, "surely_covers", _surely_covers),
        Patch(python_index, "surely_covers", _surely_covers),
    ]


def _verdicts(cluster: Cluster) -> list[CheckResult]:
    history = cluster.history
    cluster.audit_journal()
    return [
        *_oddities(cluster),  # first, because they were found as they happened
        *_tables(cluster),
        *(checker.check(history) for checker in CHECKERS),
        cluster.effective.verdict,
        cluster.whereabouts.copies.verdict,
        cluster.whereabouts.runs.verdict,
        cluster.whereabouts.moves.verdict,
        CheckResult("replay", cluster.replayed),
        CheckResult("invariants", cluster.validated),
        CheckResult("settles", 1),
    ]


def _tables(cluster: Cluster) -> list[CheckResult]:
    cores: dict[str, BrokerState] = {}
    for name, broker in cluster.brokers.items():
        if broker.core is None:
            return []  # the run ended early, and says so itself
        cores[name] = broker.core
    history, found = cluster.history, [convergence.check(cores)]
    if cluster.plan.move_s:
        leftovers = {name: _leftovers(core) for name, core in cores.items()}
        found += [copies.check(history, cores), moves.check_rest(leftovers)]
    return [routing.check(history, cores), *found]


def _leftovers(core: BrokerState) -> list[str]:
    """What the rooms of a broker keep of moves."""
    rooms = (room for room in core.durable.rooms if hasattr(room, "leftovers"))
    return [text for room in rooms for text in room.leftovers()]


def _oddities(cluster: Cluster) -> list[CheckResult]:
    """Violations that the recorder found during the run."""
    found: dict[str, CheckResult] = {}
    for guarantee, detail in cluster.history.oddities:
        found.setdefault(guarantee, CheckResult(guarantee)).violations.append(detail)
    cluster.history.oddities.clear()
    return list(found.values())


def _result(
    seed: int, profile_name: str, cluster: Cluster, verdicts: Sequence[CheckResult]
) -> Result:
    checked, found = _tally(verdicts, GUARANTEES_OF_OVERLAYS)
    return Result(
        seeds=1,
        steps=cluster.trace.steps,
        faults=dict(sorted(cluster.faults.items())),
        checked=checked,
        violations=_violations(seed, found, cluster.crash_at, cluster.fault),
        trace_hash=cluster.trace.digest(),
        profile=profile_name,
        transactions=_count(cluster),
        moves=cluster.relocations.count(),
        story=tuple(cluster.trace.story or ()),
    )


def _tally(
    verdicts: Sequence[CheckResult], guarantees: Sequence[str]
) -> tuple[dict[str, int], dict[str, list[str]]]:
    """By guarantee: the number of tests, and the violations."""
    checked = dict.fromkeys(guarantees, 0)
    found: dict[str, list[str]] = {}
    for verdict in verdicts:
        checked[verdict.guarantee] += verdict.checked
        if verdict.violations:
            found.setdefault(verdict.guarantee, []).extend(verdict.violations)
    return checked, found


def _violations(
    seed: int, found: dict[str, list[str]], crash_at: int | None, fault: str
) -> tuple[Violation, ...]:
    return tuple(
        Violation(seed, guarantee, detail, crash_at, fault)
        for guarantee, details in found.items()
        for detail in details[:SHOWN]
    )


def _count(cluster: Cluster) -> dict[str, int]:
    """Transactions by kind and outcome (unknown if no client could ask), if they were begun."""
    found: dict[str, int] = {}
    for deal in cluster.history.deals.values():
        if deal.refused:
            continue
        name = f"{deal.kind} {deal.outcome}"
        found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))


def tell_story(
    seed: int,
    profile_name: str = DEFAULT_PROFILE,
    crash_at: int | None = None,
    fault: str = "kill",
) -> Iterator[str]:
    """One seed step by step: process, input and output of each, and the violations at the end."""
    result = simulate(seed, profile_name, story=True, crash_at=crash_at, fault=fault)
    yield f"seed {seed}, profile {profile_name}: {result.steps} steps, trace {result.trace_hash}"
    yield "times are virtual seconds; ** marks what was done to the overlay"
    yield from result.story
    yield ""
    yield "faults: " + (", ".join(f"{k} {n}" for k, n in result.faults.items()) or "none")
    if result.moves:
        yield "moves: " + ", ".join(f"{k} {n}" for k, n in result.moves.items())
    yield "checked: " + ", ".join(f"{k} {n}" for k, n in result.checked.items())
    if not result.violations:
        yield "no violations"
    for violation in result.violations:
        yield f"VIOLATED {violation.guarantee}: {violation.detail}"


# ── many seeds ───────────────────────────────────────────────────────────────────────────


def run_seeds(
    seeds: Iterable[int],
    profile_name: str = DEFAULT_PROFILE,
    mutation: str | None = None,
    *,
    processes: int = 1,
    until_violation: bool = False,
) -> Result:
    """Run all seeds. The result does not depend on the number of processes that share the work."""
    jobs = [(seed, profile_name, mutation) for seed in seeds]
    results: list[Result] = []
    if processes > 1 and len(jobs) > 1:
        context = multiprocessing.get_context("spawn")
        with context.Pool(processes) as pool:
            chunk = max(1, min(16, len(jobs) // (4 * processes)))
            for result in pool.imap(_job, jobs, chunksize=chunk):
                results.append(result)
                if until_violation and result.violations:
                    break
    else:
        for job in jobs:
            results.append(_job(job))
            if until_violation and results[-1].violations:
                break
    return merge(results, profile_name)


def _job(job: tuple[int, str, str | None]) -> Result:
    return simulate(*job)


def merge(results: Sequence[Result], profile_name: str = DEFAULT_PROFILE) -> Result:
    """In the order of the seeds, so that the common hash is reproducible."""
    together = blake2b(digest_size=16)
    for result in results:
        together.update(result.trace_hash.encode())
    return Result(
        seeds=len(results),
        steps=sum(result.steps for result in results),
        faults=dict(sorted(_sum(result.faults for result in results).items())),
        checked=_sum(result.checked for result in results),
        violations=tuple(v for result in results for v in result.violations),
        trace_hash=results[0].trace_hash if len(results) == 1 else together.hexdigest(),
        profile=profile_name,
        transactions=dict(sorted(_sum(result.transactions for result in results).items())),
        moves=dict(sorted(_sum(result.moves for result in results).items())),
        ordering=dict(sorted(_sum(result.ordering for result in results).items())),
    )


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for kind, count in each.items():
            total[kind] = total.get(kind, 0) + count
    return total


def crashes_of(
    seed: int, profile_name: str = "calm", fault: str = "kill", *, of_moves: bool = False
) -> Sequence[int]:
    """The steps that brokers take in a small run of this seed, until faults would stop; or only
    those in which they get, decide or send something of a move."""
    if profile(profile_name).ordering:
        return ordering.steps_of(seed)
    menu, needs = _small(profile_name, {}, fault)
    cluster = Cluster(seed, menu, needs=needs, crash_at=0, fault=fault)
    with patched(_surroundings(cluster)):
        cluster.chaos()
    return cluster.steps_of_moves if of_moves else range(1, cluster.broker_steps + 1)


def _small(
    profile_name: str, needs: dict[str, Any], fault: str
) -> tuple[FaultMenu, dict[str, Any]]:
    """The menu and the plan of a run with one fault."""
    if fault not in STEP_FAULTS:
        raise MisuseError(f"no fault is called {fault!r}; there are {', '.join(STEP_FAULTS)}")
    chosen = profile(profile_name)
    menu = replace(profile("calm"), sure=chosen.sure, moving=chosen.moving)
    few = {"outbox_bound": FEW} if fault == "give_up" else {}
    return menu, {**needs, **SMALL, **few}


def crash_everywhere(
    seed: int,
    profile_name: str = "calm",
    fault: str = "kill",
    *,
    stride: int = 1,
    of_moves: bool = False,
) -> Result:
    """Repeat one small run, with a fault at each step that a broker takes in it."""
    steps = crashes_of(seed, profile_name, fault, of_moves=of_moves)[::stride]
    runs = [simulate(seed, profile_name, crash_at=step, fault=fault) for step in steps]
    return merge(runs, profile_name)


# ── mutations ────────────────────────────────────────────────────────────────────────────


class Catch(Struct, frozen=True):
    """Whether a planted mutation was caught. `seeds` is the number of seeds that were run."""

    mutation: str
    caught: bool
    guarantees: tuple[str, ...]
    profile: str
    seeds: int
    detail: str = ""


def catch(mutation: str, most_seeds: int = 40) -> Catch:
    """Run seeds of the mutation's profile until a checker objects."""
    chosen = MUTATIONS[mutation]
    for count, seed in enumerate(range(chosen.first, chosen.first + most_seeds), 1):
        result = simulate(seed, chosen.profile, mutation)
        if result.violations:
            guarantees = tuple(dict.fromkeys(v.guarantee for v in result.violations))
            detail = result.violations[0].detail
            return Catch(mutation, True, guarantees, chosen.profile, count, detail)
    return Catch(mutation, False, (), chosen.profile, most_seeds)


def catch_all(most_seeds: int = 40, *, processes: int = 1) -> list[Catch]:
    jobs = [(name, most_seeds) for name in MUTATIONS]
    if processes > 1:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            return pool.starmap(catch, jobs, chunksize=1)
    return [catch(*job) for job in jobs]
