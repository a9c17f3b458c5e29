"""What the driver needs of a core, so that tests can hand it a small one."""

from __future__ import annotations

from typing import Any, Protocol

from motet.broker.config import BrokerConfig
from motet.broker.remembered import Remembered
from motet.protocol.contract import Input, Output
from motet.runtime.contact import Contact
from motet.runtime.journal import Journal


class Core(Protocol):
    """What the driver needs of `BrokerCore`."""

    @property
    def config(self) -> BrokerConfig: ...

    def step(self, given: Input, now: float, /) -> Output: ...

    def recover(self, now: float, remembered: Remembered | None = None) -> Output: ...

    def done_with(self) -> int: ...

    def withheld(self) -> int: ...

    def objection_to(self, neighbours: tuple[str, ...]) -> str: ...

    def status(self, clients: tuple[str, ...] = ()) -> dict[str, Any]: ...


def passed(core: Core, journal: Journal, contact: Contact) -> int:
    """How many facts what leaves at a contact may rest on: those on disk and, unless it is a mate
    that they are on their way to, at the mates."""
    mates = core.config.mates
    if not mates or contact.name in mates:
        return journal.durable
    return min(journal.durable, journal.appended - core.withheld())
