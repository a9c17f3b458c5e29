"""The catalogue of deliberate bugs, and how one gets into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from motet.testing.patches import Patch


class Mutation(NamedTuple):
    name: str
    story: str
    profile: str
    breaks: tuple[str, ...]
    """Guarantees of which at least one must object."""
    patches: Callable[[], list[Patch]]
    needs: dict[str, Any]
    """What the plan of a run must be like, so that the bug can show at all; `menu` is what the
    menu of faults must be like."""
    first: int = 0
    """The first seed to try: for a bug that few runs show, one that does."""


BUGS: dict[str, Mutation] = {}

Maker = Callable[[], list[Patch]]


def mutation(profile: str, *breaks: str, first: int = 0, **needs: Any) -> Callable[[Maker], Maker]:
    """Register a function that makes the patches; its docstring tells the bug."""

    def register(make: Maker) -> Maker:
        story = " ".join((make.__doc__ or "").split())
        name = make.__name__.replace("_", "-")
        BUGS[name] = Mutation(name, story, profile, breaks, make, needs, first)
        return make

    return register


def nothing(*_: Any, **__: Any) -> None:
    """What should be done is not."""
