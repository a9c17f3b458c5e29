"""The records of a site, as bytes: its identity, its facts, and the parts of a snapshot.

As for brokers, a journal is replayed only by the version of the machine that wrote it, and older
snapshots are migrated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Union

import msgspec
from msgspec import Struct

from motet.errors import WrittenByAnotherVersion
from motet.protocol.contract import Fact
from motet.protocol.link.facts import ControlReceived, NeighbourMet
from motet.protocol.link.machine import LedgersImage, OutboxImage
from motet.protocol.sequencing.facts import SequencingFact
from motet.protocol.sequencing.state import SITE_PARTS
from motet.sequencer.config import SiteConfig
from motet.sequencer.seat import ImagePartTaken, Seat

MACHINE_VERSION: Final = 2
"""Increase it with every change of the effect of a fact, of the image, or of these records, and add
a migration for snapshots of the previous version."""


class SiteFounded(Struct, array_like=True, frozen=True):
    """The first record of a journal and of each snapshot: the identity of the site."""

    name: str
    incarnation: int
    line: tuple[str, ...]
    placement: tuple[tuple[str, str], ...]
    elsewhere: str
    mode: str
    waits: bool = False
    """It leads only if another process says so."""


_FACT = ControlReceived | NeighbourMet | SequencingFact | Seat | ImagePartTaken
_PART = Union[(*SITE_PARTS, LedgersImage, OutboxImage, Seat, ImagePartTaken)]  # type: ignore[valid-type]

_MIRRORED = Union[(*SITE_PARTS, LedgersImage, OutboxImage)]  # type: ignore[valid-type]

encode = msgspec.msgpack.Encoder().encode
_facts: msgspec.msgpack.Decoder[tuple[float, _FACT]] = msgspec.msgpack.Decoder(tuple[float, _FACT])
_founded = msgspec.msgpack.Decoder(SiteFounded)
_parts: msgspec.msgpack.Decoder[Struct] = msgspec.msgpack.Decoder(_PART)
_mirrored: msgspec.msgpack.Decoder[Struct] = msgspec.msgpack.Decoder(_MIRRORED)


def founded_as(config: SiteConfig) -> SiteFounded:
    return SiteFounded(
        config.name,
        config.incarnation,
        config.sites,
        config.placement,
        config.elsewhere or config.sites[0],
        config.mode,
        config.waits,
    )


def check_part(payload: bytes) -> None:
    """Raise `DecodeError` if it is no part of an image that a primary sends."""
    _mirrored.decode(payload)


def decode_fact(payload: bytes) -> Fact:
    return Fact(*_facts.decode(payload))


def decode_founded(payload: bytes) -> SiteFounded:
    return _founded.decode(payload)


def decode_parts(version: int, payloads: Iterable[bytes]) -> Iterator[Struct]:
    if version not in (1, MACHINE_VERSION):  # version 1 has no seat: such a site leads alone
        raise WrittenByAnotherVersion(
            f"the snapshot is of version {version}, and this release reads up to version "
            f"{MACHINE_VERSION}: start the release that wrote it"
        )
    yield from map(_parts.decode, payloads)
