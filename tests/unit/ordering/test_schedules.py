"""Each part of the rule has a schedule that goes wrong without it, and only without it."""

from __future__ import annotations

import pytest

from motet.testing.bugs import MUTATIONS, ordering, planted
from motet.testing.ordering.schedules import SCHEDULES
from motet.testing.ordering.simulation import run_schedule, verdicts

GOES_WRONG = {
    "sites-outside-the-group-are-skipped": "a-timestamp-is-slow-between-two-sites",
    "new-partners-are-not-told": "another-stream-makes-a-pair-of-two-topics",
    "a-stream-counts-with-what-it-has-now": "a-stream-drops-a-topic-after-an-event",
    "a-change-names-only-what-the-stream-has": "a-stream-drops-a-topic-and-joins-another",
    "a-repeated-request-gets-a-new-number": "an-answer-is-lost",
    "no-number-becomes-void": "a-publisher-dies-with-its-number",
    "nobody-asks": "a-publisher-dies-with-its-number",
    "a-void-number-loses-its-timestamp": "a-void-number-has-entries",
    "the-expired-are-not-told": "a-stream-expires-without-knowing-it",
    "a-joiner-does-not-stop": "events-come-while-a-topic-is-added",
    "a-joiner-does-not-wait-for-its-cut": "an-event-from-before-the-cut-is-slow",
    "a-dropped-topic-is-delivered-until-the-answer": "events-come-while-a-topic-is-dropped",
    "requests-leave-in-any-order": "a-publisher-wants-several-numbers-at-once",
    "a-publisher-does-not-wait-between-sites": "a-publisher-turns-to-another-site",
    "late-events-are-not-tagged": "an-event-comes-behind-its-void-number",
    "the-standby-acknowledges-before-its-disk": (
        "both-replicas-die-before-the-second-disk-is-done"
    ),
    "a-standby-is-in-step-before-it-has-all": "a-primary-dies-while-its-image-is-on-its-way",
}


def violated(schedule: str) -> dict[str, list[str]]:
    found = verdicts(run_schedule(schedule))
    return {each.guarantee: each.violations for each in found if each.violations}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_violates_nothing(schedule: str) -> None:
    assert not violated(schedule)


@pytest.mark.parametrize("bug", GOES_WRONG)
def test_it_goes_wrong_with_its_bug(bug: str) -> None:
    with planted(bug) as mutation:
        found = violated(GOES_WRONG[bug])
    assert set(found) & set(mutation.breaks), found


def test_every_part_of_the_rule_has_a_schedule() -> None:
    rule = ordering.__name__
    bugs = {name for name, bug in MUTATIONS.items() if bug.patches.__module__ == rule}
    staged = {name for name, bug in MUTATIONS.items() if "schedule" in bug.needs}
    assert bugs | staged == GOES_WRONG.keys()
    assert set(GOES_WRONG.values()) == SCHEDULES.keys()
