"""A publication on its way: stamped by its edge broker; its body is never decoded in full."""

from __future__ import annotations

from msgspec import Raw, Struct


class Publication(Struct, array_like=True, frozen=True, gc=False):
    """`body` is the encoded pair of attributes and payload; `sequence` counts per publisher."""

    publisher: str
    sequence: int
    body: Raw


class TransactionPublication(Publication, frozen=True, gc=False):
    """A publication of a transaction, at its receiver. `sequence` counts per transaction."""

    tx: str
