"""Where sealed segments go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from motet.runtime.pubend.batches import Sieve
from motet.runtime.pubend.parts import Sealed

if TYPE_CHECKING:
    from motet.runtime.pubend.reading import Sifted


class Shelf(Protocol):
    @property
    def sealed(self) -> tuple[Sealed, ...]:
        """The parts that are here, oldest first."""

    def remove(self, parts: Sequence[Sealed]) -> None:
        """These parts go."""

    def read(self, part: Sealed, since: int, upto: int, sieve: Sieve) -> Iterator[Sifted]:
        """What is kept of a range of ticks, piece by piece. `FileNotFoundError` if the part has
        gone."""


class NoShelf:
    """For those who leave everything in rows."""

    sealed: tuple[Sealed, ...] = ()

    def remove(self, parts: Sequence[Sealed]) -> None:
        assert not parts

    def read(self, part: Sealed, since: int, upto: int, sieve: Sieve) -> Iterator[Sifted]:
        raise AssertionError("nothing was sealed")
