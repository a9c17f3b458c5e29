"""A machine whose state is kept in a folder: what the code of the folder must know of it.

A journal begins with the record that founds the machine, and continues with its facts. A snapshot
begins with the same record, and continues with the parts of the state. Restoring is pure: the
caller reads the disk and passes bytes. The same code starts a real process, takes snapshots in the
background, reads a folder for inspection, and restarts processes in the simulator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from motet.errors import LogCorrupted

if TYPE_CHECKING:
    from motet.protocol.contract import Fact
    from motet.protocol.link.machine import Ledger

FACT = 0
FOUNDED = 1
PART = 2
"""Kinds of records."""


class Snapshot(NamedTuple):
    """`version` is that of the machine that made it; the first payload founds the machine."""

    version: int
    payloads: Iterable[bytes]


class MachineState(Protocol):
    """State that only facts change."""

    @property
    def ledgers(self) -> Mapping[str, Ledger]: ...

    def replay(self, facts: Iterable[Fact], /) -> None: ...

    def restore(self, parts: Iterable[Any], /) -> None: ...

    def digest(self) -> str: ...

    def validate(self) -> None: ...


Settings = TypeVar("Settings", bound=Struct)
State = TypeVar("State", bound=MachineState)
Core = TypeVar("Core")


class Machine(ABC, Generic[Settings, State, Core]):
    """The settings have a `name` and an `incarnation`."""

    what: ClassVar[str]
    """What it is to an operator, like "broker"."""
    where: ClassVar[str]
    """This object as `module:NAME`, for the process that takes snapshots."""
    journal: ClassVar[str]
    snapshot: ClassVar[str]
    """The purposes of its files, which their headers name."""
    without_folder: ClassVar[str]
    """What to do if the folder is lost for good."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Facts mean something only to this version of the machine."""

    @abstractmethod
    def founding(self, settings: Settings) -> bytes:
        """The first record of a new journal."""

    @abstractmethod
    def born(self, settings: Settings | None, founding: bytes) -> State:
        """The empty state of the machine that this record founds. Raises `MisuseError` if it was
        founded with other settings than these. Without settings, any machine is accepted."""

    @abstractmethod
    def identity(self, state: State) -> bytes:
        """The founding record as it is now, for a snapshot."""

    @abstractmethod
    def parts(self, state: State) -> Iterator[Struct]:
        """All state, for a snapshot."""

    @abstractmethod
    def encode(self, record: Any) -> bytes:
        """A fact, or a part."""

    @abstractmethod
    def decode_fact(self, payload: bytes) -> Fact: ...

    @abstractmethod
    def decode_parts(self, version: int, payloads: Iterable[bytes]) -> Iterator[Any]:
        """The parts of a snapshot, written by this or an older version."""

    @abstractmethod
    def new(self, settings: Settings) -> Core: ...

    @abstractmethod
    def core_of(self, state: State) -> Core:
        """The core that continues with this state."""

    @abstractmethod
    def continues(self, state: State, settings: Settings) -> tuple[Core, list[Fact]]:
        """The core that continues with this state and these settings, and facts about settings
        that have changed meanwhile. Raises `MisuseError` if they must not change like that."""

    @abstractmethod
    def summary(self, state: State, facts: int) -> dict[str, Any]:
        """The identity and the state in brief, after so many facts, for an operator."""

    def rebuild(
        self,
        settings: Settings | None,
        snapshot: Snapshot | None,
        records: Iterable[tuple[int, bytes]],
    ) -> State:
        """The durable state as it was after the last record.

        The identity comes from the founding record; other settings (leases etc.) may have changed
        meanwhile."""
        left = iter(records)
        if snapshot is not None:
            payloads = iter(snapshot.payloads)
            state = self._born(settings, next(payloads, None))
            state.restore(self.decode_parts(snapshot.version, payloads))
        else:
            kind, payload = next(left, (FOUNDED, None))
            if kind != FOUNDED:
                raise LogCorrupted("the journal does not begin with the record that founds it")
            state = self._born(settings, payload)
        state.replay(self._facts(left))
        return state

    def _born(self, settings: Settings | None, payload: bytes | None) -> State:
        if payload is None:
            raise LogCorrupted("the journal is empty: even the record that founds it is missing")
        return self.born(settings, payload)

    def _facts(self, records: Iterable[tuple[int, bytes]]) -> Iterator[Fact]:
        for kind, payload in records:
            if kind == FACT:
                yield self.decode_fact(payload)
            else:
                raise LogCorrupted(f"a record of kind {kind} was found among the facts")

    def picture(self, state: State) -> Iterator[tuple[int, bytes]]:
        """A snapshot of this state, as records."""
        yield FOUNDED, self.identity(state)
        for part in self.parts(state):
            yield PART, self.encode(part)
