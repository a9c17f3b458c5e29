"""Hand-overs with an unknown outcome."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from motet.errors import Aborted, UnavailableError
from motet_labs.demo import clients
from motet_labs.demo.clients import DISPATCHER


class Undecided:
    """Its transactions fail, and their outcome stays unknown."""

    id = "dispatcher/1"

    async def transaction(self, *, timeout: float) -> Undecided:
        del timeout
        return self

    async def __aenter__(self) -> Undecided:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def invite(self, _: object) -> None:
        raise Aborted("somebody is away")

    async def outcome(self, tx: str, *, timeout: float) -> str:
        del tx, timeout
        return "in progress"


def test_an_outcome_that_stays_unknown_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "OUTCOME_BOUND_S", 0.0)
    cast: Any = SimpleNamespace(clients={DISPATCHER: Undecided()}, lots={"lot-01": None})
    made = clients.Dispatcher(cast, lambda: 0.0)
    with pytest.raises(UnavailableError, match=r"the outcome of transaction dispatcher/1"):
        asyncio.run(made.run(asyncio.Event()))
