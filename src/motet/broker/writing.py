"""Which connections have something to write, and when it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from motet.runtime.contact import Contact

Soon = Callable[[Callable[[], None]], Any]


def behind_the_rest(work: Callable[[], None]) -> None:
    """When the loop has taken all that has come at the same time."""
    asyncio.get_running_loop().call_soon(work)


class Writing:
    """`soon` or `now`, everybody who is `due` is written to once, in the order of becoming so."""

    def __init__(self, write: Callable[[Contact], None], soon: Soon = behind_the_rest) -> None:
        self._write = write
        self._soon = soon
        self._due: dict[int, Contact] = {}
        self._arranged = False

    def due(self, contact: Contact) -> None:
        self._due[contact.number] = contact

    def soon(self) -> None:
        if self._due and not self._arranged:
            self._arranged = True
            self._soon(self.now)

    def now(self) -> None:
        self._arranged = False
        while self._due:
            due, self._due = self._due, {}
            for contact in due.values():
                self._write(contact)
