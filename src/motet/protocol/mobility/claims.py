"""What a neighbour claims about a session that comes: believed only if it can be true.

A broker trusts its neighbours, but a message of theirs must not stop it, nor be about clients that
do not move. Pure, so that a replay of the journal believes the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, msgpack

from motet.model.filters import from_wire
from motet.protocol.mobility.messages import MoveCommit
from motet.protocol.room import DurableRoom

HIGHEST = 1 << 62
"""Of ticks and of numbers: above it nothing could be counted on."""


def decoded(
    commit: MoveCommit, rooms: Mapping[str, DurableRoom]
) -> list[tuple[DurableRoom, Struct]] | None:
    """The parts for rooms that this broker has; None if some part is malformed, or about somebody
    else."""
    found: list[tuple[DurableRoom, Struct]] = []
    for part in commit.parts:
        room = rooms.get(part.room)
        if room is None or room.moving is None:
            continue
        try:
            state = msgpack.decode(part.state, type=room.moving, dec_hook=from_wire)
        except Exception:  # the decoder's hooks may raise anything
            return None
        if not room.fits(commit.client, commit.epoch, state):
            return None
        found.append((room, state))
    return found


def is_counted(commit: MoveCommit) -> bool:
    """Are all ticks and numbers in range, and are the starts those of the client?"""
    single = (
        *(commit.number, commit.tick, commit.cut, commit.upto, commit.forgotten),
        *(commit.carried, commit.unsettled),
    )
    tables = (commit.levels, commit.doubts, commit.predecessors, commit.trail)
    starts = commit.starts
    ticked = (*starts.known, *starts.ends, *starts.lapsed, *starts.awaited)
    named = (*ticked, *starts.tentative, *starts.severed)
    rows = (*commit.subscriptions, *commit.advertisements)
    numbers = (each.id.sequence for each in rows)
    lost = commit.gone.values()
    return (
        in_range(single)
        and in_range(numbers)
        and all(in_range(table.values()) for table in tables)
        and all(0 < since <= upto <= HIGHEST for since, upto in lost)
        and all(op[:2] == (commit.client, commit.epoch) for op, _ in named)
        and all(in_range(tick for _, tick in ticks) for _, ticks in ticked)
    )


def in_range(numbers: Iterable[int]) -> bool:
    return all(0 <= each <= HIGHEST for each in numbers)
