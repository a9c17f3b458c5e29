"""The image of durable state: helpers that rooms share to make their parts of it.

Each durable room encodes all its state in parts, and restores itself from them
(`DurableRoom.parts`, `DurableRoom.takers`). `motet.broker.core.image` combines the parts.

Order matters: tables are listed in the order of arrival, because later steps iterate in it. Sets of
hops are lists of bit numbers, because they may have any number of bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from msgspec import Struct

from motet.model import Hop

CHUNK = 256
"""Rows in one part: small enough that writing one is always fast."""

Bits = tuple[int, ...]
P = TypeVar("P")
T = TypeVar("T")


class HeadImage(Struct, tag="head", array_like=True, frozen=True):
    """State that exists once per broker. Each room fills fields of its own."""

    now: float
    issued: int
    lives: int
    removals: int
    ignored: int
    met: Bits
    complete: Bits
    declared: Bits
    next_keys: tuple[int, int]
    next_tick: int = 0
    reserved: int = 0
    destroyed: tuple[int, int] = (0, 0)


class PubendsImage(Struct, tag="pubends", array_like=True, frozen=True):
    """Where logs are, which one is ours, and the floors of our clients. Shared, like the head."""

    hosted: str
    rows: tuple[tuple[str, Hop], ...]
    floors: tuple[tuple[str, int], ...]
    paths: tuple[tuple[str, tuple[str, ...]], ...] = ()


SHARED: tuple[type[Struct], ...] = (HeadImage, PubendsImage)
"""For these kinds, each room returns a dict of fields."""


def chunked(kind: Callable[[tuple[T, ...]], P], rows: Iterable[T]) -> Iterator[P]:
    left = iter(rows)
    while chunk := tuple(islice(left, CHUNK)):
        yield kind(chunk)


def numbers(mask: int) -> Bits:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)


def mask_of(bits: Bits) -> int:
    mask = 0
    for number in bits:
        mask |= 1 << number
    return mask
