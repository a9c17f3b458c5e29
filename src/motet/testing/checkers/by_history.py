"""The checkers that need nothing but a history, in the order in which they are told."""

from __future__ import annotations

from motet.testing.checkers import (
    answers,
    completeness,
    duplicates,
    exactly_once,
    order,
    sessions,
    soundness,
    total_order,
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
)
