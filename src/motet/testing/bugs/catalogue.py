"""Deliberate bugs that test the checkers: a checker must catch each of them.

A mutation is a named set of patches that apply while one cluster runs. It names the fault profile
that shows the bug and the guarantees that the bug may break; a test asserts that it is caught
within a bounded number of seeds. If a mutation is not caught, improve the workload or a checker,
never the mutation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

from motet.errors import MisuseError


class Patch(NamedTuple):
    """Sets `name` of a class, a module or a dict to `value`."""

    owner: Any
    name: Any
    value: Any

    def swap(self) -> Patch:
        """Apply; returns the patch that undoes it."""
        if isinstance(self.owner, dict):
            before = self.owner[self.name]
            self.owner[self.name] = self.value
        else:
            before = vars(self.owner)[self.name]
            setattr(self.owner, self.name, self.value)
        return Patch(self.owner, self.name, before)


@contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[None]:
    undo: list[Patch] = []
    try:
        for patch in patches:
            undo.append(patch.swap())
        yield
    finally:
        for patch in reversed(undo):
            patch.swap()


class Mutation(NamedTuple):
    name: str
    story: str
    profile: str
    breaks: tuple[str, ...]
    """At least one of these guarantees must be violated."""
    patches: Callable[[], list[Patch]]
    needs: dict[str, Any]
    """Settings of the run's plan without which the bug cannot show; `menu` overrides the fault
    menu."""
    first: int = 0
    """The first seed to try; a seed that shows the bug, if few do."""


MUTATIONS: dict[str, Mutation] = {}
"""Filled when the modules of bugs are imported, which importing this package does."""

Maker = Callable[[], list[Patch]]


def mutation(profile: str, *breaks: str, first: int = 0, **needs: Any) -> Callable[[Maker], Maker]:
    """Register a function that makes the patches; its docstring describes the bug. If one method
    is patched, the function is what `replaces` or `around` make of its new body."""

    def register(make: Maker) -> Maker:
        story = " ".join((make.__doc__ or "").split())
        name = make.__name__.replace("_", "-")
        MUTATIONS[name] = Mutation(name, story, profile, breaks, make, needs, first)
        return make

    return register


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], Maker]:
    """The decorated function, in the place of a method, is the bug."""

    def register(method: Callable[..., Any]) -> Maker:
        @wraps(method)
        def make() -> list[Patch]:
            return [Patch(owner, name, method)]

        return make

    return register


def around(owner: Any, name: str) -> Callable[[Callable[..., Any]], Maker]:
    """The same, for a function whose first argument is the original method."""

    def register(method: Callable[..., Any]) -> Maker:
        @wraps(method)
        def make() -> list[Patch]:
            original = getattr(owner, name)

            def patched_method(*args: Any, **kwargs: Any) -> Any:
                return method(original, *args, **kwargs)

            return [Patch(owner, name, patched_method)]

        return make

    return register


def nothing(*_: Any, **__: Any) -> None:
    """Replaces a method by doing nothing."""


@contextmanager
def planted(name: str) -> Iterator[Mutation]:
    """Give every core in this process the bug while the context is open."""
    chosen = MUTATIONS.get(name)
    if chosen is None:
        raise MisuseError(f"no mutation is called {name!r}; there are {', '.join(MUTATIONS)}")
    with patched(chosen.patches()):
        yield chosen
