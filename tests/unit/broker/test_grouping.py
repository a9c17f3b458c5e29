"""Records wait for company only where waiting brings company."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from motet.broker.driver.pubend import FIRST_TRY, GATHER_EVENTS, GATHER_S, RAREST_TRY, Grouping

SYNC_S = 0.0004


def groups(arrivals: Iterable[float], many: int) -> list[tuple[float, float, int]]:
    """What becomes of records that come whatever happens, one event each: for every group when
    its first record came, when it began, and its size."""
    grouping = Grouping()
    made: list[tuple[float, float, int]] = []
    waiting: list[float] = []
    deadline = 0.0

    def begin(at: float) -> None:
        grouping.begin(at)
        made.append((waiting[0], at, len(waiting)))
        waiting.clear()

    for now in arrivals:
        if waiting and now >= deadline:
            begin(deadline)
        waiting.append(now)
        left_s = grouping.wait_s(1, now)
        if not left_s:
            begin(now)
        elif len(waiting) == 1:
            deadline = now + left_s
        if len(made) >= many:
            break
    return made


def test_a_steady_trickle_shares_commits() -> None:
    every_s = GATHER_S / 8
    made = groups((number * every_s for number in count()), 200)
    later = made[FIRST_TRY + 2 :]
    assert all(size >= 6 for _, _, size in later)
    assert all(began - first <= 1.001 * GATHER_S for first, began, _ in made)


def test_rare_appends_never_wait_for_a_group() -> None:
    made = groups((number * GATHER_S * 1.5 for number in count()), 1000)
    assert all(began == first and size == 1 for first, began, size in made)


def test_a_publisher_that_awaits_each_answer_rarely_waits_for_a_group() -> None:
    """Given a publisher that sends the next event when the last one is durable."""
    grouping, now, waited = Grouping(), 0.0, 0
    many = 4 * RAREST_TRY
    for _ in range(many):
        left_s = grouping.wait_s(1, now)
        waited += left_s > 0
        now += left_s
        grouping.begin(now)
        now += SYNC_S
    assert 1 <= waited <= 10


def test_enough_events_for_a_group_of_their_own_go_at_once() -> None:
    made = groups((number * GATHER_S / 8 for number in count()), 100)
    assert made[-1][2] > 1
    grouping, now = Grouping(), 0.0
    for _ in range(10 * RAREST_TRY):
        assert grouping.wait_s(GATHER_EVENTS, now) == 0
        grouping.begin(now)
        now += SYNC_S


def test_the_first_after_a_pause_goes_at_once() -> None:
    """Given that waiting has just brought company; when nothing comes for a while; then what
    comes first does not wait."""
    grouping, now = Grouping(), 0.0
    for _ in range(100):
        if not grouping.wait_s(1, now):
            grouping.begin(now)
        now += GATHER_S / 4
    assert grouping.wait_s(1, now + 1.0) == 0
