"""One event per number, one number per request, and timestamps that name the topic's group only.

Whatever sites crash: a request that is repeated gets the same number with the same entries, no two
requests get one number, no two events are sent or given with one. A receipt tells the number that
subscribers see. A name has one integer. A site that has forgotten an instance, and says so, may
give another number to a repeated request: nobody uses the first one then.

The group is judged by an oracle that knows only what sessions asked for: U may stand in a timestamp
of T if between request and answer some session may have had both at the sites, or in mode `pairs`
if two may have had each of both by then.
"""

from __future__ import annotations

from motet.testing.checkers.result import CheckResult
from motet.testing.ordering.history import (
    CAUSAL,
    PUBLISHED,
    Given,
    Numbered,
    OrderHistory,
    RequestId,
    TopicsHeld,
)

GUARANTEE = "numbers"
Place = tuple[str, int]


def check(history: OrderHistory) -> CheckResult:
    verdict = CheckResult(GUARANTEE)
    _check_requests(history, verdict)
    _check_events(history, verdict)
    _check_names(history, verdict)
    _check_groups(history, verdict)
    return verdict


def _check_requests(history: OrderHistory, verdict: CheckResult) -> None:
    answers: dict[RequestId, Numbered] = {}
    owners: dict[Place, RequestId] = {}
    for each in history.numbered:
        place = (each.topic, each.number)
        first = answers.setdefault(each.request, each)
        same = (first.topic, first.number, first.entries) == (*place, each.entries)
        verdict.expect(
            same,
            "{} got {} with {}, and then {} with {}",
            _asked(each.request),
            _name((first.topic, first.number)),
            first.entries,
            _name(place),
            each.entries,
        )
        owner = owners.setdefault(place, each.request)
        verdict.expect(
            owner == each.request,
            "{} was given to {} and to {}",
            _name(place),
            _asked(owner),
            _asked(each.request),
        )


def _check_events(history: OrderHistory, verdict: CheckResult) -> None:
    events: dict[Place, int] = {}
    places: dict[int, set[Place]] = {}

    def has(place: Place, event: int, how: str) -> None:
        known = events.setdefault(place, event)
        places.setdefault(event, set()).add(place)
        verdict.expect(known == event, "{} is event {} and event {} {}", place, known, event, how)

    for sent in history.sent:
        has((sent.topic, sent.number), sent.event, "as it was sent")
    for session in history.sessions:
        for step in session.steps:
            if isinstance(step, Given):
                has((step.topic, step.number), step.event, f"in {session.name}")
    for publication in history.publications.values():
        if publication.outcome == PUBLISHED:
            place = (publication.topic, publication.number)
            verdict.expect(
                place in places.get(publication.event, ()),
                "the receipt of event {} names {}, it was sent as {}",
                publication.event,
                _name(place),
                sorted(places.get(publication.event, ())),
            )


def _check_names(history: OrderHistory, verdict: CheckResult) -> None:
    ids: dict[str, int] = {}
    names: dict[int, str] = {}
    for name, number in history.names:
        same = ids.setdefault(name, number) == number and names.setdefault(number, name) == name
        verdict.expect(same, "{} is {} and {}", name, (number, names.get(number)), ids[name])


# ── the oracle ───────────────────────────────────────────────────────────────────────────


class _Oracle:
    """Which topics may have been in one group when."""

    def __init__(self, history: OrderHistory) -> None:
        self._causal = history.mode == CAUSAL
        self._having: dict[str, list[TopicsHeld]] = {}
        ever: dict[str, set[str]] = {}
        for each in history.memberships:
            topics = each.topics
            if not self._causal:
                topics = frozenset(ever.setdefault(each.session, set()) | topics)
                ever[each.session] |= topics
            for topic in sorted(topics):
                membership = TopicsHeld(each.session, topics, each.since, each.until)
                self._having.setdefault(topic, []).append(membership)

    def allows(self, topic: str, other: str, since: float, until: float) -> bool:
        sessions = {
            each.session
            for each in self._having.get(topic, ())
            if other in each.topics
            and each.since <= until
            and (each.until >= since or not self._causal)
        }
        return len(sessions) >= (1 if self._causal else 2)


def _check_groups(history: OrderHistory, verdict: CheckResult) -> None:
    oracle = _Oracle(history)
    seen: set[RequestId] = set()
    for each in history.numbered:
        if each.request in seen:
            continue
        seen.add(each.request)
        for other, number in each.entries:
            if other == each.topic:
                verdict.expect(
                    number < each.number,
                    "the timestamp of {} names {}",
                    _name((each.topic, each.number)),
                    _name((other, number)),
                )
                continue
            verdict.expect(
                oracle.allows(each.topic, other, each.asked_at, each.at),
                "the timestamp of {} names {}, which no session had beside it",
                _name((each.topic, each.number)),
                other,
            )


def _asked(request: RequestId) -> str:
    return f"request {request.number} of {request.client} at {request.site}"


def _name(place: Place) -> str:
    return f"{place[0]}#{place[1]}"
