"""A publication on its way: stamped by its edge broker, its body never decoded in full."""

from __future__ import annotations

from msgspec import Raw, Struct


class Publication(Struct, array_like=True, frozen=True, gc=False):
    """`body` is the encoded pair of attributes and payload; `sequence` counts per publisher."""

    publisher: str
    sequence: int
    body: Raw


class InTransaction(Publication, frozen=True, gc=False):
    """At its receiver: one that belongs to a transaction. `sequence` counts per transaction."""

    tx: str
