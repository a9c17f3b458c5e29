"""`motet move`, against brokers that only pretend to move clients."""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from typing import Any

import pytest

from motet.cli import console
from motet.cli.console import CommandFailed
from motet.cli.main import run
from motet.errors import Disconnected, MoveRefused, NoAnswer, NotEffective
from motet.protocol.mobility.messages import MoveOrder, MoveOrdered
from tests.unit.client.moving_brokers import PretendOverlay

command = import_module("motet.cli.move")


async def started(
    *names: str, homes: dict[str, str | None]
) -> tuple[PretendOverlay, dict[str, str]]:
    overlay = PretendOverlay()
    await overlay.start(*names)
    for broker in overlay.brokers.values():
        broker.homes = dict(homes)
    return overlay, {name: overlay.address(name) for name in names}


async def moved(addresses: dict[str, str], to: str = "B3", timeout_s: float = 10.0) -> Any:
    return await command._move(addresses, "alice", to, timeout_s)


async def test_the_broker_of_the_client_gets_the_order() -> None:
    overlay, addresses = await started("B1", "B2", homes={"alice": "B2"})
    assert await moved(addresses, timeout_s=3.0) == "B2"
    b1, b2 = overlay.brokers.values()
    assert b2.heard[-1] == MoveOrder("alice", "B3", 3.0)
    assert b1.count(MoveOrder) == 0


async def test_a_broker_is_believed_about_itself() -> None:
    overlay, addresses = await started("B1", "B2", "B3", homes={"alice": "B1"})
    overlay.brokers["B2"].homes = {"alice": "B2"}
    overlay.brokers["B1"].homes = {"alice": "B2"}
    assert await moved(addresses) == "B2"


async def test_a_broker_that_is_given_by_its_address() -> None:
    overlay, addresses = await started("B1", "B2", homes={"alice": "B1"})
    assert await moved({addresses["B1"]: addresses["B1"]}) == "B1"
    with pytest.raises(CommandFailed, match="alice is at B1, whose address is not known here"):
        await moved({addresses["B2"]: addresses["B2"]})
    assert overlay.brokers["B2"].count(MoveOrder) == 0


async def test_a_client_that_is_there_is_not_moved() -> None:
    overlay, addresses = await started("B1", homes={"alice": "B1"})
    assert await moved(addresses, "B1") == "B1"
    assert overlay.brokers["B1"].count(MoveOrder) == 0


async def test_refusals_are_errors() -> None:
    overlay, addresses = await started("B1", homes={"alice": "B1"})
    broker = overlay.brokers["B1"]
    broker.ordered = MoveOrdered("alice", "MoveRefused", "B3 is stopping")
    with pytest.raises(MoveRefused, match="B3 is stopping"):
        await moved(addresses)
    broker.ordered = MoveOrdered("alice", "NotEffective", "", ("B2",))
    with pytest.raises(NotEffective, match=r"move alice to B3 .* brokers not reached: B2"):
        await moved(addresses)


async def test_a_client_that_nobody_knows() -> None:
    overlay, addresses = await started("B1", homes={"alice": None})
    with pytest.raises(CommandFailed, match=r"no broker knows a client 'alice'$"):
        await moved(addresses)
    addresses["B2"] = overlay.address("B2")
    with pytest.raises(CommandFailed, match="'alice'; 1 of 2 brokers did not answer"):
        await moved(addresses)
    with pytest.raises(Disconnected, match="no broker answers"):
        await moved({"B2": addresses["B2"]})


async def test_a_broker_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motet.client.orders.ANSWER_GRACE_S", 0.0)
    overlay, addresses = await started("B1", homes={"alice": "B1"})
    overlay.brokers["B1"].is_silent = True
    with pytest.raises(NoAnswer, match=r"did not answer within 0\.05 s"):
        await moved(addresses, timeout_s=0.05)


# ── the command line ─────────────────────────────────────────────────────────────────────

URL = "motet://127.0.0.1:1"


@pytest.mark.parametrize(
    ("former", "text"),
    [("B1", "alice moves from B1 to B2\n"), ("B2", "alice is at B2 already\n")],
)
def test_what_it_prints(
    former: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def done(addresses: dict[str, str], client: str, to: str, timeout_s: float) -> str:
        assert (addresses, client, to, timeout_s) == ({URL: URL}, "alice", "B2", 3.0)
        await asyncio.sleep(0)
        return former

    monkeypatch.setattr(command, "_move", done)
    words = ["move", URL, "alice", "--to", "B2", "--timeout", "3"]
    assert run(words) == console.FINE
    assert capsys.readouterr().out == text
    assert run([*words, "--json"]) == console.FINE
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"client": "alice", "from": former, "to": "B2"}


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ([URL, "alice", "--to", "B2"], console.FAILED, f"no broker answers at {URL}"),
        ([URL, "--to", "B2"], console.MISUSE, "CLIENT is missing"),
        ([URL, "alice"], console.MISUSE, "Missing option '--to'"),
        (["nowhere.toml", "alice", "--to", "B2"], console.MISUSE, "neither an address nor a file"),
    ],
)
def test_errors_are_one_line(
    words: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["move", *words]) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert text in said.err
    assert "Traceback" not in said.err
