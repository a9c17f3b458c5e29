"""The checkers that need nothing but a history, in the order in which they are told."""

from __future__ import annotations

from motet.testing.checkers import (
    answers,
    completeness,
    duplicates,
    order,
    sessions,
    soundness,
)

CHECKERS = (completeness, duplicates, order, soundness, answers, sessions)
