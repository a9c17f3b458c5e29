"""The checkers that need nothing but a history, in the order in which they are told."""

from __future__ import annotations

from motet.testing.checkers import (
    answers,
    atomicity,
    completeness,
    duplicates,
    durability,
    exactly_once,
    handover,
    order,
    serializability,
    sessions,
    soundness,
    total_order,
    transaction_order,
    visibility,
)

CHECKERS = (
    completeness,
    exactly_once,
    duplicates,
    order,
    total_order,
    soundness,
    answers,
    sessions,
    atomicity,
    visibility,
    transaction_order,
    handover,
    serializability,
    durability,
)
