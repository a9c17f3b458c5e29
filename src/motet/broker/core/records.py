"""The records of a broker, as bytes: its identity, its facts, and the parts of a snapshot.

`MACHINE_VERSION` is the version of the machine that interprets facts. Replaying a journal with
another machine could silently give another state, so a journal is replayed only by the version that
wrote it; a snapshot is state, not history, and can be migrated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Union

import msgspec
from msgspec import Struct

from motet.broker.core.image import ORDER, RoomState
from motet.errors import WrittenByAnotherVersion
from motet.model.coverage import Covering
from motet.model.filters import from_own, from_wire, to_wire
from motet.protocol.contract import Fact

MACHINE_VERSION = 8
"""Increase it with every change of the effect of a fact, of `image`, or of these records, and add a
migration for snapshots of the previous version."""

Payloads = Iterable[bytes]
Migration = Callable[[Iterable[Any]], Iterable[Any]]


def _as_they_are(parts: Iterable[Any]) -> Iterable[Any]:
    return parts


def _without_open_plans(parts: Iterable[Any]) -> Iterable[Any]:
    """Clients of version 3 did their part of a plan themselves. Parts not done yet are dropped; the
    deadline of the transaction handles the rest."""
    for part in parts:
        if part[0] == "transactions":
            state = part[1]
            for local in state.get("locals", {}).values():
                local["invitations"] = [i for i in local.get("invitations", ()) if i.get("op")]
            state["held"] = [h for h in state.get("held", ()) if h[2][0] != "tx-follow"]
        yield part


MIGRATIONS: dict[int, Migration] = {
    1: _as_they_are,
    2: _as_they_are,
    3: _without_open_plans,
    4: _as_they_are,
    5: _as_they_are,
    6: _as_they_are,
    7: _as_they_are,
}
"""By the version that wrote a snapshot: converts its parts, as plain values, to those of the next
version. Versions since 2 have added parts, and optional fields at the end."""


class Founded(Struct, array_like=True, frozen=True):
    """The first record of a journal and of each snapshot: the identity of the broker."""

    name: str
    incarnation: int
    neighbours: tuple[str, ...]
    covering: Covering
    root: str | None = None
    """The broker that decides transactions. None: written before transactions existed."""


_encoder = msgspec.msgpack.Encoder(enc_hook=to_wire)


@cache
def _facts() -> msgspec.msgpack.Decoder[tuple[float, Any]]:
    """Created with the first fact: the table of protocols imports all rooms, and they this."""
    from motet.broker.core.protocols import fact_kinds

    kinds = Union[fact_kinds()]  # type: ignore[valid-type]  # noqa: UP007
    return msgspec.msgpack.Decoder(tuple[float, kinds], dec_hook=from_own)  # type: ignore[valid-type]


_founded = msgspec.msgpack.Decoder(Founded)
_PART = Union[(RoomState, *ORDER)]  # type: ignore[valid-type]
_parts: msgspec.msgpack.Decoder[Struct] = msgspec.msgpack.Decoder(_PART, dec_hook=from_wire)

encode: Callable[[Fact | Struct], bytes] = _encoder.encode


def decode_fact(payload: bytes) -> Fact:
    return Fact(*_facts().decode(payload))


def decode_founded(payload: bytes) -> Founded:
    return _founded.decode(payload)


def decode_parts(version: int, payloads: Payloads) -> Iterator[Struct]:
    """The parts of a snapshot written by this or an older version."""
    if version == MACHINE_VERSION:
        yield from map(_parts.decode, payloads)
        return
    if version > MACHINE_VERSION:
        raise WrittenByAnotherVersion(
            f"the snapshot is of version {version}, newer than this release, which is of version "
            f"{MACHINE_VERSION}: start the release that wrote it"
        )
    plain: Iterable[Any] = map(msgspec.msgpack.decode, payloads)
    for step in range(version, MACHINE_VERSION):
        migrate = MIGRATIONS.get(step)
        if migrate is None:
            raise WrittenByAnotherVersion(
                f"the snapshot is of version {version}, this release of version "
                f"{MACHINE_VERSION}, and nothing leads from {step} to {step + 1}: "
                "start a release in between first"
            )
        plain = migrate(plain)
    for values in plain:  # as bytes again, because parts keep some of their fields encoded
        yield _parts.decode(msgspec.msgpack.encode(values))
