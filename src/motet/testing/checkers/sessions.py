"""An epoch is issued once and belongs to one client; of two clients with one id, one remains."""

from __future__ import annotations

from motet.testing.checkers.verdict import Verdict
from motet.testing.history import History


def check(history: History) -> Verdict:
    verdict = Verdict("sessions")
    owners: dict[str, tuple[str, int]] = {}
    for session in history.sessions:
        owner = (session.client, session.instance)
        verdict.expect(
            owners.setdefault(session.epoch, owner) == owner,
            "epoch {} belongs to {} and to {}",
            session.epoch,
            owners[session.epoch],
            owner,
        )
    living: dict[str, str] = {}
    for session in history.living:
        verdict.expect(
            living.setdefault(session.client, session.epoch) == session.epoch,
            "{} lives in {} and in {}",
            session.client,
            living[session.client],
            session.epoch,
        )
    return verdict
