"""What breaks the algorithm of paper 4 as published, done to ours: real machines of sites and
clients in the simulator, judged by its checkers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from motet.protocol.sequencing.messages import PAIRS
from motet.testing.faults import profile
from motet.testing.ordering.schedules import SCHEDULES, ScheduledWorld
from motet.testing.ordering.simulation import run_schedule, run_world, verdicts
from motet.testing.ordering.world import World

SLOW_S: Final = 0.3
"""Less than half a lease: no number is given back."""


def overtaken_number() -> ScheduledWorld:
    """U's number is slow on its way over V's site, which leaves U's group meanwhile."""
    stage = ScheduledWorld(PAIRS, {"U": 0, "V": 1, "T": 2})
    for name in ("i", "j"):
        stage.stream(name, "T", "V", "U")
    stage.publishers(p="U", q="U", r="T")
    wire = stage.wire_between[frozenset(("S1", "S2"))]
    wire.stalled_until = stage.agenda.now + SLOW_S
    stage.publish("p", "U", wait_s=0.05)
    stage.cast["j"].application.drop_from(1, "V")
    stage.wait(0.05)
    stage.publish("q", "U", wait_s=0.05)
    stage.publish("r", "T")
    stage.wait(2 * SLOW_S)
    stage.rest()
    return stage


def _scheduled(name: str) -> Callable[[], World]:
    assert name in SCHEDULES, name
    return lambda: run_schedule(name)


OURS: Final[dict[str, Callable[[], World]]] = {
    "a number is overtaken after a change": overtaken_number,
    "a request is repeated": _scheduled("an-answer-is-lost"),
    "a subscriber changes its interest": _scheduled("a-stream-drops-a-topic-and-joins-another"),
}


def violations(name: str) -> list[str]:
    return judged(OURS[name]())


def violations_of_seed(seed: int) -> list[str]:
    """Of a random run with all faults."""
    return judged(run_world(seed, profile("ordering"), {"mode": PAIRS}))


def judged(world: World) -> list[str]:
    """By all checkers: also that nobody waits at the end."""
    return [text for verdict in verdicts(world) for text in verdict.violations]
