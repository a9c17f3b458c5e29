"""Where sealed segments go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from motet.model import Filter
from motet.runtime.log import Extent
from motet.runtime.pubend.batches import Sieve, Sifted
from motet.runtime.pubend.block_tables import Room
from motet.runtime.pubend.entries import Entry, Grain
from motet.runtime.pubend.parts import Sealed
from motet.runtime.pubend.tables import Tabled, Wishes


class Shelf(Protocol):
    @property
    def sealed(self) -> tuple[Sealed, ...]:
        """The parts that are here, oldest first."""

    @property
    def given_up(self) -> tuple[Sealed, ...]:
        """Those of them that were found damaged on opening, and accepted as lost."""

    @property
    def last_sequence(self) -> int:
        """Records of the log up to this one are here, or have gone from here."""

    async def seal(self, extent: Extent) -> Sealed | None:
        """Rewrite a segment by columns; None if this shelf takes nothing. It is not on the shelf
        before it is added."""

    def seal_here(self, extent: Extent) -> Sealed | None:
        """The same without an event loop, which would have to wait."""

    def add(self, part: Sealed) -> None:
        """Take a part that was sealed; its rows may go."""

    def trim(self, first: int) -> None:
        """Parts with records before `first` go."""

    def read(self, part: Sealed, since: int, upto: int, sieve: Sieve) -> Iterator[Sifted]:
        """What is kept of a range of ticks, piece by piece. `FileNotFoundError` if the part has
        gone."""

    def tables(
        self, part: Sealed, since: int, upto: int, filter: Filter | None, wishes: Wishes, room: Room
    ) -> Iterator[Tabled]:
        """The same as tables, until there is no room."""

    def entries(self, part: Sealed, since: int, upto: int, grain: Grain) -> Iterator[Entry]:
        """Its records, but for what is in them."""

    def kinds(self, part: Sealed, names: Sequence[str]) -> dict[str, set[str]] | None:
        """Of which kinds the values of these attributes are; None if the columns do not say."""

    def verify(self) -> None:
        """Raise if a file is not as it was written."""


class NoShelf:
    """For those who leave everything in rows."""

    sealed: tuple[Sealed, ...] = ()
    given_up: tuple[Sealed, ...] = ()
    last_sequence = 0

    async def seal(self, extent: Extent) -> None:
        assert extent

    def seal_here(self, extent: Extent) -> None:
        assert extent

    def add(self, part: Sealed) -> None:
        raise AssertionError(f"{part} does not belong here")

    def trim(self, first: int) -> None:
        assert first

    def read(self, part: Sealed, since: int, upto: int, sieve: Sieve) -> Iterator[Sifted]:
        raise AssertionError(f"{part} was never sealed: {since} to {upto}, {sieve}")

    def tables(
        self, part: Sealed, since: int, upto: int, filter: Filter | None, wishes: Wishes, room: Room
    ) -> Iterator[Tabled]:
        asked = f"{since} to {upto}, {filter}, {wishes}, {room}"
        raise AssertionError(f"{part} was never sealed: {asked}")

    def entries(self, part: Sealed, since: int, upto: int, grain: Grain) -> Iterator[Entry]:
        raise AssertionError(f"{part} was never sealed: {since} to {upto}, {grain}")

    def kinds(self, part: Sealed, names: Sequence[str]) -> dict[str, set[str]] | None:
        raise AssertionError(f"{part} was never sealed: {names}")

    def verify(self) -> None:
        """There is nothing that could be damaged."""
