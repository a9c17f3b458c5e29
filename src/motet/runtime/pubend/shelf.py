"""Where sealed segments go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from motet.runtime.pubend.batches import Sieve, Sifted
from motet.runtime.pubend.parts import Sealed


class Shelf(Protocol):
    @property
    def sealed(self) -> tuple[Sealed, ...]:
        """The parts that are here, oldest first."""

    @property
    def given_up(self) -> tuple[Sealed, ...]:
        """Those of them that were found damaged on opening, and accepted as lost."""

    def remove(self, parts: Sequence[Sealed]) -> None:
        """These parts go; they are the oldest."""

    def read(self, part: Sealed, since: int, upto: int, sieve: Sieve) -> Iterator[Sifted]:
        """What is kept of a range of ticks, piece by piece. `FileNotFoundError` if the part has
        gone."""


class NoShelf:
    """For those who leave everything in rows."""

    sealed: tuple[Sealed, ...] = ()
    given_up: tuple[Sealed, ...] = ()

    def remove(self, parts: Sequence[Sealed]) -> None:
        assert not parts

    def read(self, part: Sealed, since: int, upto: int, sieve: Sieve) -> Iterator[Sifted]:
        raise AssertionError(f"{part} was never sealed: {since} to {upto}, {sieve}")
