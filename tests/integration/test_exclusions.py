"""Each exclusion that docs/guarantees.md lists is a refusal that names its reason, and no row of
that table is made up or forgotten."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import motet
from motet.broker.overlay.topology import Topology
from motet.client import LocalOverlay
from motet.client.logs.stage import Attempt, commit, open_stage
from motet.client.orders import move_order
from motet.errors import MisuseError, MoveRefused, NotOffered, TopologyError
from motet.fleet.supervisor import change_between
from motet.model import encode_event

GUARANTEES = Path(__file__).parents[2] / "docs" / "guarantees.md"
STREAM = "n >= 0"
COVERED = Topology.line(2, covering=True)
CELLS = Topology.parse(
    '[brokers.B1]\nlisten = "127.0.0.1:7101"\nlinks = ["B2"]\n'
    '[brokers.B2]\nlisten = "127.0.0.1:7102"\nmates = { B2a = "127.0.0.1:7103" }\n'
)


async def stage_a_row(overlay: LocalOverlay, broker: str) -> None:
    attempt = Attempt("levels", "query", 0, 0, "a")
    async with open_stage(overlay.address(broker), attempt) as stage:
        await stage.add([encode_event({"n": 1}, b"")])


async def covering_and_exactly_once(_: Path) -> None:
    async with motet.local(COVERED) as overlay, await overlay.connect("alice") as alice:
        await alice.advertise(STREAM)
        with pytest.raises(NotOffered, match="because covering is on"):
            await alice.publish({"n": 1})
        await alice.publish({"n": 1}, best_effort=True)


async def covering_and_since(_: Path) -> None:
    async with motet.local(COVERED) as overlay, await overlay.connect("alice") as alice:
        with pytest.raises(NotOffered, match="does not deliver exactly once"):
            await alice.subscribe(STREAM, since="beginning")


async def covering_and_logs(folder: Path) -> None:
    async with (
        motet.local(COVERED, data=folder) as overlay,
        motet.open_log(overlay.address("B1")) as log,
    ):
        with pytest.raises(NotOffered, match="covering is on"):
            await log.describe()


async def covering_and_sinks(folder: Path) -> None:
    async with motet.local(COVERED, data=folder) as overlay:
        with pytest.raises(NotOffered, match="covering is on"):
            await stage_a_row(overlay, "B1")


async def covering_and_transactions(_: Path) -> None:
    async with motet.local(COVERED) as overlay, await overlay.connect("alice") as alice:
        with pytest.raises(NotOffered, match="offers no transactions"):
            await alice.transaction()


async def covering_and_cells(_: Path) -> None:
    with pytest.raises(TopologyError, match="mates carry streams, which need it off"):
        Topology.parse(CELLS.to_toml().replace("covering = false", "covering = true"))


async def cells_and_transactions(_: Path) -> None:
    async with motet.local(CELLS) as overlay, await overlay.connect("alice", broker="B1") as alice:
        with pytest.raises(NotOffered, match="offers no transactions: its overlay has no root"):
            await alice.transaction()


async def cells_and_sinks(folder: Path) -> None:
    async with motet.local(CELLS, data=folder) as overlay:
        with pytest.raises(NotOffered, match="a cell"):
            await stage_a_row(overlay, "B2")
        with pytest.raises(NotOffered, match="it is a cell or linked to one"):
            await commit(overlay.address("B1"), "levels", "query", 0, [])


async def cells_and_new_mates(_: Path) -> None:
    alone = Topology.parse(CELLS.to_toml().replace("B2a", "B2b"))
    with pytest.raises(TopologyError, match="mates cannot change while the overlay runs"):
        change_between(CELLS, alone)


async def total_order_and_since(_: Path) -> None:
    async with (
        motet.local(1) as overlay,
        await overlay.connect("alice", order="total") as alice,
    ):
        with pytest.raises(MisuseError, match="use a client with `order='publisher'`"):
            await alice.subscribe(STREAM, since="beginning")


async def total_order_and_transactions(_: Path) -> None:
    async with (
        motet.local(1) as overlay,
        await overlay.connect("alice", order="total") as alice,
        alice.transaction(isolation="none") as tx,
    ):
        with pytest.raises(NotOffered, match="use a client in publisher order"):
            await tx.subscribe(STREAM)
        await tx.abort()


async def covering_and_moves(_: Path) -> None:
    async with motet.local(COVERED) as overlay, await overlay.connect("alice") as alice:
        with pytest.raises(NotOffered, match="B1 moves no clients, because covering is on"):
            await alice.move("B2")
        await alice.advertise(STREAM)
        assert alice.broker == "B1"


async def cells_and_moves(_: Path) -> None:
    async with motet.local(CELLS) as overlay, await overlay.connect("alice", broker="B1") as alice:
        with pytest.raises(NotOffered, match="it is in a cell, or next to one"):
            await alice.move("B2")
        await alice.advertise(STREAM)
        assert alice.broker == "B1"


async def sinks_and_moves(folder: Path) -> None:
    async with motet.local(Topology.line(2, durability="fsync"), data=folder) as overlay:
        address, attempt = overlay.address("B1"), Attempt("levels", "query", 0, 0, "a")
        async with open_stage(address, attempt) as stage:
            await stage.add([encode_event({"n": 1}, b"")])
            part = await stage.seal()
        await commit(address, "levels", "query", 0, [part])
        with pytest.raises(MoveRefused, match="'levels' is a sink, and its staged files are at B1"):
            await move_order(address, "levels", "B2", 5.0)


async def volatile_and_logs(_: Path) -> None:
    async with (
        motet.local(1) as overlay,
        motet.open_log(overlay.address("B1")) as log,
    ):
        with pytest.raises(NotOffered, match="it is volatile"):
            await log.describe()


async def volatile_and_sinks(_: Path) -> None:
    async with motet.local(1) as overlay:
        with pytest.raises(NotOffered, match="it is volatile"):
            await stage_a_row(overlay, "B1")


PLAYED: dict[tuple[str, str], Callable[[Path], Awaitable[None]]] = {
    ("covering", "exactly-once events"): covering_and_exactly_once,
    ("covering", "`since`"): covering_and_since,
    ("covering", "reading the log"): covering_and_logs,
    ("covering", "sinks"): covering_and_sinks,
    ("covering", "transactions"): covering_and_transactions,
    ("covering", "cells"): covering_and_cells,
    ("covering", "moves of clients"): covering_and_moves,
    ("cells", "transactions"): cells_and_transactions,
    ("cells", "sinks at a cell or at a broker linked to one"): cells_and_sinks,
    ("cells", "moves through a cell or a broker linked to one"): cells_and_moves,
    ("cells", "new mates while the overlay runs"): cells_and_new_mates,
    ("total order", "`since`"): total_order_and_since,
    ("total order", "subscriptions in transactions"): total_order_and_transactions,
    ("volatile brokers", "reading the log"): volatile_and_logs,
    ("volatile brokers", "sinks"): volatile_and_sinks,
    ("sinks", "moves"): sinks_and_moves,
}


def listed() -> set[tuple[str, str]]:
    section = GUARANTEES.read_text().partition("## What does not compose")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \| [^|]+ \|$", section, re.MULTILINE)
    return {row for row in rows if row[0] not in {"with", "---"}}


def test_the_table_of_exclusions_lists_what_is_played_here() -> None:
    assert listed() == set(PLAYED)


@pytest.mark.parametrize("pair", PLAYED, ids=" without ".join)
async def test_an_exclusion_is_refused_with_its_reason(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    await PLAYED[pair](tmp_path)
