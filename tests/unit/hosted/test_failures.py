"""Hosted clients whose code cannot run: the status says why, and they are tried again slowly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import motet
from motet.hosted import Context, Hosted
from motet.model import Event
from tests.waiting import eventually

HERE = __name__


class Patient(Hosted):
    """Works."""

    async def start(self, context: Context, state: bytes | None) -> None:
        del state
        await context.subscribe("n > 0")


class Demanding(Hosted):
    def __init__(self, something: str) -> None:
        self.something = something


class Greedy(Patient):
    seen = False

    async def on_event(self, event: Event) -> None:
        self.seen = bool(event)

    def state(self) -> bytes:
        return bytes(2**20 + 1 if self.seen else 0)


class Careless(Patient):
    seen = False

    async def on_event(self, event: Event) -> None:
        self.seen = bool(event)

    def state(self) -> Any:
        return {"seen": 1} if self.seen else b""


class Stranger:
    """Derives from nothing."""


CASES = {
    "patient": (f"{HERE}:Patient", ""),
    "demanding": (f"{HERE}:Demanding", "missing 1 required positional argument: 'something'"),
    "greedy": (f"{HERE}:Greedy", "'greedy' has 1048577 bytes, and at most 1048576 can be kept"),
    "careless": (f"{HERE}:Careless", "the state of 'careless' is of type dict; return bytes"),
    "stranger": (f"{HERE}:Stranger", "is no class that derives from motet.hosted.Hosted"),
    "missing": (f"{HERE}:Nobody", "has no attribute 'Nobody'; install it where the broker runs"),
    "unknown": ("no_module:Nobody", "cannot be imported: ModuleNotFoundError"),
}


@pytest.fixture
async def overlay() -> AsyncIterator[motet.client.LocalOverlay]:
    text = '[brokers.B1]\nlisten = "127.0.0.1:7701"\n'
    text += "".join(
        f'[hosted.{n}]\nclass = "{path}"\nhome = "B1"\n' for n, (path, _) in CASES.items()
    )
    async with motet.local(motet.Topology.parse(text)) as overlay:
        yield overlay


async def test_the_status_says_why_a_hosted_client_does_not_run(
    overlay: motet.client.LocalOverlay,
) -> None:
    def container() -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = overlay.status()["B1"]["container"]
        return found

    await eventually(
        lambda: all(container()[n]["state"] == "running" for n in ("patient", "greedy"))
    )
    async with await overlay.connect("alice") as alice:
        await alice.advertise("n > 0")
        await alice.publish({"n": 1})
        for name, (_, why) in CASES.items():
            await eventually(lambda name=name, why=why: why in container()[name]["error"])
    status = container()
    assert status["patient"]["state"] == "running"
    assert {n for n in CASES if status[n]["state"] == "not registered"} == {
        "stranger",
        "missing",
        "unknown",
    }
    # Each failure is counted, and followed by a pause.
    assert all(1 <= status[name]["failures"] < 20 for name in ("demanding", "greedy", "careless"))
