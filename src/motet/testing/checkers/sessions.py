"""One client id has one session in the whole overlay: the newest.

An epoch is issued once and belongs to one client. In the end each id has one session. A client is
told that it was fenced only if there is a newer session. A broker that must know of a session gives
the next client with that id a newer epoch; a client that was there before and returns must not get
its old session back. A broker must know of a session as soon as the news can have travelled, if
nothing on the path was broken and no broker on it has lost its state since.
"""

from __future__ import annotations

from motet.model.ids import is_newer
from motet.testing.checkers.result import CheckResult
from motet.testing.history import Fencing, History, OpeningRecord


def check(history: History) -> CheckResult:
    verdict = CheckResult("sessions")
    _check_owners(history, verdict)
    _check_living(history, verdict)
    openings: dict[str, list[OpeningRecord]] = {}
    for opening in history.openings:
        openings.setdefault(opening.client, []).append(opening)
    for fencing in history.fencings:
        _check_fencing(fencing, openings.get(fencing.client, []), verdict)
    for known in openings.values():
        for opening in known:
            _check_opening(opening, known, history, verdict)
    return verdict


def _check_owners(history: History, verdict: CheckResult) -> None:
    owners: dict[str, tuple[str, int]] = {}
    for session in history.sessions:
        owner = (session.client, session.instance)
        if not verdict.holds(owners.setdefault(session.epoch, owner) == owner):
            verdict.violated(
                f"epoch {session.epoch} belongs to {owners[session.epoch]} and to {owner}"
            )


def _check_living(history: History, verdict: CheckResult) -> None:
    living: dict[str, str] = {}
    for session in history.living:
        if not verdict.holds(living.setdefault(session.client, session.epoch) == session.epoch):
            verdict.violated(
                f"{session.client} has two sessions, {living[session.client]} and {session.epoch}"
            )


def _check_fencing(fencing: Fencing, openings: list[OpeningRecord], verdict: CheckResult) -> None:
    if not verdict.holds(
        any(
            opening.instance != fencing.instance
            and opening.at <= fencing.at
            and (
                fencing.epoch is None
                or is_newer(opening.epoch, than=fencing.epoch)
                or (opening.adopted and opening.epoch == fencing.epoch)
            )
            for opening in openings
        )
    ):
        verdict.violated(
            f"{fencing.client} (process {fencing.instance}) was fenced out of {fencing.epoch} at "
            f"{fencing.at:.4f} s, but there was no newer session"
        )


def _check_opening(
    opening: OpeningRecord, openings: list[OpeningRecord], history: History, verdict: CheckResult
) -> None:
    if opening.adopted:
        return
    for other in openings:
        if other.adopted:
            continue
        if other.instance == opening.instance or not _must_know(opening, other, history):
            continue
        if not verdict.holds(is_newer(opening.epoch, than=other.epoch)):
            verdict.violated(
                f"{opening.broker} opened {opening.epoch} at {opening.at:.4f} s, although it must "
                f"have known {other.epoch}"
            )
        if opening.resume is None or other.epoch not in opening.present:
            continue
        if not verdict.holds(is_newer(opening.resume, than=other.epoch)):
            verdict.violated(
                f"{opening.client} reconnected to {opening.broker} with {opening.resume} at "
                f"{opening.at:.4f} s and was given a session, although {other.epoch} is newer"
            )


def _must_know(opening: OpeningRecord, other: OpeningRecord, history: History) -> bool:
    """Must the first broker know by now of the session that the second has opened?"""
    path = history.tree.path(other.broker, opening.broker)
    latest = other.at + (len(path) + 1) * history.hop_s
    disturbed, amnesia = history.disturbed, history.amnesia
    edges = history.tree.edges_between(path[0], path[-1])
    return not (
        opening.at < latest
        or any(disturbed[broker].meets(other.at, latest) for broker in path)
        or any(disturbed[edge].meets(other.at, latest) for edge in edges)
        or any(amnesia[broker].meets(other.at, opening.at) for broker in path)
    )
