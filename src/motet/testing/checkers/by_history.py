"""The checkers that need only a history, in the order of their reports."""

from __future__ import annotations

from motet.testing.checkers import (
    answers,
    atomicity,
    checkpoints,
    completeness,
    duplicates,
    durability,
    exactly_once,
    handover,
    moves,
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
    moves,
    checkpoints,
)
