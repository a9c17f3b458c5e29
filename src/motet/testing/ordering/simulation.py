"""Runs seeds of the profile `ordering`: one world each, all checkers on its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from motet.testing import transport
from motet.testing.bugs.catalogue import Patch, patched
from motet.testing.checkers.result import CheckResult
from motet.testing.faults import FaultMenu, profile
from motet.testing.ordering.checkers import (
    causality,
    completeness,
    notification_order,
    numbers,
    settles,
)
from motet.testing.ordering.plan import SMALL
from motet.testing.ordering.schedules import CALM, perform
from motet.testing.ordering.world import World

CHECKERS = (notification_order, causality, numbers, completeness, settles)
GUARANTEES = (*(checker.GUARANTEE for checker in CHECKERS), "replay", "invariants")


def run_world(
    seed: int,
    menu: FaultMenu,
    needs: Mapping[str, Any],
    *,
    story: bool = False,
    crash_at: int | None = None,
) -> World:
    world = World(seed, menu, needs=needs, story=story, crash_at=crash_at)
    with patched(_surroundings(world)):
        world.run()
    return world


def run_schedule(name: str, *, story: bool = False) -> World:
    """One of `schedules.SCHEDULES`, whatever the seed is."""
    with patched([Patch(transport, "CLIENT_HOP_S", CALM["client_hop_s"])]):
        return perform(name, story=story)


def verdicts(world: World) -> list[CheckResult]:
    history = world.history
    found = [CheckResult(guarantee, 0, [detail]) for guarantee, detail in history.oddities]
    found += [checker.check(history) for checker in CHECKERS]
    found.append(CheckResult("replay", world.replayed))
    found.append(CheckResult("invariants", world.validated))
    return found


def counts(world: World) -> dict[str, int]:
    """What happened in a run, by kind."""
    recorder = world.recorder
    happened = world.counts | {"changes": recorder.changes, "sessions": len(world.history.sessions)}
    return {kind: count for kind, count in sorted(happened.items()) if count}


def steps_of(seed: int) -> Sequence[int]:
    """The steps that sites take in a small run of this seed, until applications stop."""
    world = World(seed, calm(), needs=SMALL, crash_at=0)
    with patched(_surroundings(world)):
        world.chaos()
    return range(1, world.site_steps + 1)


def calm() -> FaultMenu:
    return profile("calm")


def _surroundings(world: World) -> list[Patch]:
    return [Patch(transport, "CLIENT_HOP_S", world.plan.client_hop_s)]
