"""One client id, one session, in the whole overlay: the newest.

An epoch is issued once and belongs to one client. In the end each id lives in one session. Nobody
is told that another one took over unless there is a newer one. A broker that must have heard of a
session gives the next client with that id a newer epoch, unless this one was there before and
comes back: then it must not take its session back. A broker must have heard as soon as the news
can have travelled, where nothing was broken on its path and nobody on it has lost its state since.
"""

from __future__ import annotations

from motet.model.epochs import is_newer
from motet.testing.checkers.verdict import Verdict
from motet.testing.history import Fencing, History, Opening


def check(history: History) -> Verdict:
    verdict = Verdict("sessions")
    _check_owners(history, verdict)
    _check_living(history, verdict)
    openings: dict[str, list[Opening]] = {}
    for opening in history.openings:
        openings.setdefault(opening.client, []).append(opening)
    for fencing in history.fencings:
        _check_fencing(fencing, openings.get(fencing.client, []), verdict)
    for known in openings.values():
        for opening in known:
            _check_opening(opening, known, history, verdict)
    return verdict


def _check_owners(history: History, verdict: Verdict) -> None:
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


def _check_living(history: History, verdict: Verdict) -> None:
    living: dict[str, str] = {}
    for session in history.living:
        verdict.expect(
            living.setdefault(session.client, session.epoch) == session.epoch,
            "{} lives in {} and in {}",
            session.client,
            living[session.client],
            session.epoch,
        )


def _check_fencing(fencing: Fencing, openings: list[Opening], verdict: Verdict) -> None:
    verdict.expect(
        any(
            opening.instance != fencing.instance
            and opening.at <= fencing.at
            and (
                fencing.epoch is None
                or is_newer(opening.epoch, than=fencing.epoch)
                or (opening.adopted and opening.epoch == fencing.epoch)
            )
            for opening in openings
        ),
        "{} (process {}) was fenced out of {} at {:.4f} s, but nobody newer had come",
        fencing.client,
        fencing.instance,
        fencing.epoch,
        fencing.at,
    )


def _check_opening(
    opening: Opening, openings: list[Opening], history: History, verdict: Verdict
) -> None:
    if opening.adopted:
        return
    for other in openings:
        if other.adopted:
            continue
        if other.instance == opening.instance or not _must_know(opening, other, history):
            continue
        verdict.expect(
            is_newer(opening.epoch, than=other.epoch),
            "{} opened {} at {:.4f} s, though it must have known of {}",
            opening.broker,
            opening.epoch,
            opening.at,
            other.epoch,
        )
        if opening.resume is not None and other.epoch in opening.present:
            verdict.expect(
                is_newer(opening.resume, than=other.epoch),
                "{} came back to {} with {} at {:.4f} s and took its session back from {}",
                opening.client,
                opening.broker,
                opening.resume,
                opening.at,
                other.epoch,
            )


def _must_know(opening: Opening, other: Opening, history: History) -> bool:
    """Whether the one broker has heard by now of the session that the other has opened."""
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
