"""Patches: something else under a name, for as long as one run lasts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Patch(NamedTuple):
    """Put `value` under `name` of a class, a module, or a table of moves."""

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
