"""What an application holds while a filter of its own stands, and how it takes it back."""

from __future__ import annotations

from types import TracebackType
from typing import ClassVar, Literal, Protocol, Self

from motet.errors import MotetError
from motet.model import Filter


class Withdraw(Protocol):
    """How the client takes an operation back. Until the request is made, it stays in force."""

    async def __call__(self, entry: Standing, /, *, wait: str, timeout: float) -> None: ...


class Standing:
    """An advertisement or a subscription: in force from its making until it is taken back."""

    kind: ClassVar[Literal["advertise", "subscribe"]]

    def __init__(self, wanted: Filter, withdraw: Withdraw, name: str = "") -> None:
        self.filter = wanted
        self.name = name or str(wanted)
        """How a plan, or a later process of a durable client, finds it."""
        self.chosen_name = name
        """Empty if it is called by its filter."""
        self.taken_up = True
        """False while it stands only because an earlier process of the client has left it."""
        self.handle = 0
        """Set once the operation is made; stays the same when a session is lost and renewed."""
        self.begins_in = ""
        """The undecided transaction that it is to begin with."""
        self.ends_in = ""
        """The transaction that it ends, or has ended, with."""
        self.leaving = False
        """It was asked to be taken back; it stays if an undecided transaction holds it."""
        self._withdraw = withdraw
        self._error: MotetError | None = None
        self._over = False

    @property
    def in_force(self) -> bool:
        return not self._over and not self.leaving

    @property
    def over(self) -> bool:
        """Nothing more comes."""
        return self._over

    @property
    def error(self) -> MotetError | None:
        """Why it ended, if it was not by choice."""
        return self._error

    async def _take_back(self, wait: str, timeout: float) -> None:
        await self._withdraw(self, wait=wait, timeout=timeout)

    def inherit(self, left: Standing) -> None:
        """For the client: take the place of what an earlier process has left."""
        left.taken_up = True
        self.handle = left.handle

    def end(self, error: MotetError | None) -> None:
        """For the client: it is over, by choice or by `error`."""
        if not self._over:
            self._over = True
            self._error = error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # When the body failed, its error matters more than a slow goodbye.
        await self._take_back("overlay" if error is None else "local", 10.0)

    def __repr__(self) -> str:
        state = "in force" if self.in_force else "over"
        return f"<{type(self).__name__} {str(self.filter)!r}, {state}>"


class Advertisement(Standing):
    """The right to publish events within a filter, until `unadvertise`."""

    kind = "advertise"

    async def unadvertise(self, *, wait: str = "overlay", timeout: float = 10.0) -> None:
        """Take it back. Events within it are refused from now on. Twice is harmless."""
        await self._take_back(wait, timeout)
