"""Where sessions were, as the brokers of a run have recorded it: for the checker of copies.

A broker that is killed loses up to a second of its recording. If it comes back without a session,
and has not recorded that it left, the session is certain to have been there only when the broker
recorded it last.
"""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from motet.audit.files import read_table
from motet.testing.checkers.copies import CopyWatch, Key
from motet.testing.checkers.result import CheckResult

Row = dict[str, Any]


class CertainStay(NamedTuple):
    """A session was at a broker from the first time to the second one."""

    broker: str
    session: Key
    since: float
    until: float


def watch(folder: Path) -> tuple[CheckResult, float]:
    """The verdict on copies, and the longest time in which no broker had a session that moved."""
    rows: list[Row] = read_table(folder, "stays").to_pylist()
    lives: list[Row] = read_table(folder, "lives").to_pylist()
    return check(stays_of(rows, lives)), longest_transit_s(rows)


def stays_of(rows: list[Row], lives: list[Row]) -> list[CertainStay]:
    found: list[CertainStay] = []
    for broker in dict.fromkeys(row["broker"] for row in rows):
        mine = [row for row in rows if row["broker"] == broker]
        started = [{**life, "what": "started"} for life in lives if life["broker"] == broker]
        # What a broker finds is recorded before its start.
        found += _of_broker(broker, sorted([*mine, *started], key=lambda row: row["at"]))
    return found


def _of_broker(broker: str, rows: list[Row]) -> list[CertainStay]:
    here: dict[Key, tuple[float, float]] = {}
    """Since when, and when it was recorded last."""
    numbers: dict[Key, int] = {}
    """How often the session had moved when it came."""
    confirmed: dict[Key, None] = {}
    ended: list[CertainStay] = []
    for row in rows:
        at, what = row["at"], row["what"]
        if what == "started":
            for key in [key for key in here if key not in confirmed]:
                ended.append(CertainStay(broker, key, *here.pop(key)))
            confirmed.clear()
            continue
        key = (row["client"], row["epoch"])
        if what in ("left", "ended"):
            since, _ = here.pop(key, (at, at))
            ended.append(CertainStay(broker, key, since, at))
        else:
            if what == "found" and key in here and numbers[key] != row["number"]:
                # It had left and come back, and the broker was killed before it recorded that.
                ended.append(CertainStay(broker, key, *here.pop(key)))
            numbers[key] = row["number"]
            here[key] = (here.get(key, (at, at))[0], at)
            if what == "found":
                confirmed[key] = None
    ended += [CertainStay(broker, key, since, inf) for key, (since, _) in here.items()]
    return ended


def check(stays: list[CertainStay]) -> CheckResult:
    """Play what was recorded to the checker of copies."""
    watch = CopyWatch()
    hosted: dict[str, dict[Key, None]] = {}
    changes = [(stay.since, True, stay) for stay in stays]
    changes += [(stay.until, False, stay) for stay in stays if stay.until < inf]
    for at, comes, stay in sorted(changes, key=lambda change: (change[0], not change[1])):
        sessions = hosted.setdefault(stay.broker, {})
        if comes:
            sessions[stay.session] = None
        else:
            sessions.pop(stay.session, None)
        watch.look(stay.broker, sessions, at)
    return watch.verdict


def longest_transit_s(rows: list[Row]) -> float:
    left = {
        (row["client"], row["epoch"], row["number"] + 1): row["at"]
        for row in rows
        if row["what"] == "left"
    }
    came = {(r["client"], r["epoch"], r["number"]): r["at"] for r in rows if r["what"] == "came"}
    return max((at - left[key] for key, at in came.items() if key in left), default=0.0)
