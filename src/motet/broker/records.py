"""What a broker writes down, as bytes: who it is, the facts, and the parts of a snapshot.

`MACHINE_VERSION` names the machine that gives facts their meaning. Replaying a journal with
another machine could silently give another state, so a journal is replayed only by the version
that wrote it; a snapshot is state, not history, and can be migrated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from motet.broker.facts import FactBody
from motet.broker.image import Part
from motet.errors import WrittenByAnotherVersion
from motet.model.travel import from_own, from_wire, to_wire
from motet.protocol.contract import Fact

MACHINE_VERSION = 6
"""Raise it with every change of what a fact does, of `image`, or of what is written here, and add
a migration for snapshots of the version before."""

FACT = 0
FOUNDED = 1
PART = 2
"""Kinds of records."""

Payloads = Iterable[bytes]
Migration = Callable[[Iterable[Any]], Iterable[Any]]


def _as_they_are(parts: Iterable[Any]) -> Iterable[Any]:
    return parts


def _without_open_plans(parts: Iterable[Any]) -> Iterable[Any]:
    """Clients did their part of a plan themselves: what they have not done, nobody does now, and
    its deadline sees to the rest."""
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
}
"""By the version that wrote a snapshot: turns its parts, as plain values, into the parts of the
version above it. All since 2 have added parts, and fields at the end that may be missing."""


class Founded(Struct, array_like=True, frozen=True):
    """The first record of a journal and of each snapshot: whose it is, and since when."""

    name: str
    incarnation: int
    neighbours: tuple[str, ...]
    covering: bool
    root: str | None = None
    """Who decides transactions. None: it was written before there were any."""


_encoder = msgspec.msgpack.Encoder(enc_hook=to_wire)
_facts: msgspec.msgpack.Decoder[tuple[float, FactBody]] = msgspec.msgpack.Decoder(
    tuple[float, FactBody], dec_hook=from_own
)
_founded = msgspec.msgpack.Decoder(Founded)
_parts: msgspec.msgpack.Decoder[Part] = msgspec.msgpack.Decoder(Part, dec_hook=from_wire)

encode: Callable[[Fact | Founded | Part], bytes] = _encoder.encode


def decode_fact(payload: bytes) -> Fact:
    return Fact(*_facts.decode(payload))


def decode_founded(payload: bytes) -> Founded:
    return _founded.decode(payload)


def decode_parts(version: int, payloads: Payloads) -> Iterator[Part]:
    """The parts of a snapshot that this or an older version wrote."""
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
    for values in plain:
        yield msgspec.convert(values, Part, dec_hook=from_wire)
