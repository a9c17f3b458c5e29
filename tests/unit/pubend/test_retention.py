"""Which events are trimmed, when, and how that is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.errors import MisuseError
from motet.runtime.pubend import Lost, PubendLog, Retention
from tests.unit.pubend.ground import Time, bodies, fill, opened, rows, settle, shut

HOUR_S = 3600.0


@pytest.fixture(params=["rows", "columns"])
def seals(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "columns")


def filled(folder: Path, seals: bool, retention: Retention, time: Time) -> PubendLog:
    pubend = opened(folder, retention=retention, time=time)
    fill(pubend)
    if seals:
        pubend.seal_here()
        settle(pubend)
    return pubend


def test_unacknowledged_events_are_not_trimmed(tmp_path: Path, seals: bool) -> None:
    pubend = filled(tmp_path, seals, Retention(), Time())
    assert pubend.trim().events == 0
    assert pubend.first_tick == 1
    shut(pubend)


def test_events_acknowledged_by_all_are_trimmed(tmp_path: Path, seals: bool) -> None:
    pubend = filled(tmp_path, seals, Retention(), Time())
    pubend.acknowledged(100)
    trimmed = pubend.trim()
    assert 50 < trimmed.floor <= 100
    assert (trimmed.lost_events, pubend.holdings.lost_upto) == (0, 0)
    pubend.acknowledged(50)  # late, and said before
    assert pubend.trim().events == 0
    settle(pubend)
    files = len(list(tmp_path.glob("*.arrow"))) + len(list(tmp_path.glob("*.log")))
    assert 1 < files < 16
    kept = rows(pubend.read(trimmed.floor + 1))
    shut(pubend)
    again = opened(tmp_path)
    assert again.first_tick == trimmed.floor + 1
    assert rows(again.read(1)) == [Lost(1, trimmed.floor), *kept]
    shut(again)


def test_acknowledged_events_may_be_kept_for_late_readers(tmp_path: Path, seals: bool) -> None:
    time = Time()
    pubend = filled(tmp_path, seals, Retention(keep_s=HOUR_S), time)
    pubend.acknowledged(pubend.last_tick)
    assert pubend.trim().events == 0
    time.now_s += HOUR_S
    assert pubend.trim().events > 100
    assert pubend.holdings.lost_upto == 0
    shut(pubend)


def test_events_after_a_cursor_are_not_trimmed(tmp_path: Path, seals: bool) -> None:
    pubend = filled(tmp_path, seals, Retention(), Time())
    pubend.cursors.set("spark", 60)
    pubend.acknowledged(pubend.last_tick)
    assert 0 < pubend.trim().floor <= 60
    pubend.cursors.set("spark", 130)
    assert 60 < pubend.trim().floor <= 130
    shut(pubend)
    pubend = opened(tmp_path)
    assert pubend.cursors.ticks() == {"spark": 130}
    pubend.acknowledged(pubend.last_tick)
    assert pubend.trim().floor <= 130
    pubend.cursors.remove("spark")
    assert pubend.cursors.ticks() == {}
    position = pubend.appended
    assert pubend.cursors.remove("spark") == position
    assert pubend.trim().floor > 150
    with pytest.raises(MisuseError, match="not yet"):
        pubend.cursors.set("spark", pubend.last_tick + 1)
    shut(pubend)


def test_an_abandoned_cursor_expires(tmp_path: Path, seals: bool) -> None:
    time = Time()
    keep = Retention(cursor_age_s=HOUR_S)
    pubend = filled(tmp_path, seals, keep, time)
    pubend.acknowledged(pubend.last_tick)
    pubend.cursors.set("abandoned", 20)
    time.now_s += HOUR_S
    pubend.cursors.set("alive", 50)
    assert pubend.trim().expired == ()
    time.now_s += 1
    trimmed = pubend.trim()
    assert trimmed.expired == ("abandoned",)
    assert 20 < trimmed.floor <= 50
    assert trimmed.lost_events == 0  # nobody was waiting for them any more
    shut(pubend)
    again = opened(tmp_path, time=time)
    assert again.cursors.ticks() == {"alive": 50}
    shut(again)


def test_events_older_than_the_limit_are_trimmed_and_reported_lost(
    tmp_path: Path, seals: bool
) -> None:
    time = Time()
    pubend = filled(tmp_path, seals, Retention(max_age_s=24 * HOUR_S), time)
    pubend.acknowledged(30)
    time.now_s += 25 * HOUR_S
    pubend.append_run(pubend.last_tick + 1, "alice", "e1", 500, bodies(3))
    trimmed = pubend.trim()
    assert trimmed.lost_events > 100
    assert pubend.holdings.lost_upto == trimmed.floor
    assert pubend.holdings.lost_events == trimmed.lost_events
    assert pubend.trim().lost_events == 0
    shut(pubend)
    again = opened(tmp_path, time=time)
    assert (again.holdings.lost_upto, again.holdings.lost_events) == (
        trimmed.floor,
        trimmed.lost_events,
    )
    assert list(again.read(3, 10)) == [Lost(3, 10)]
    shut(again)


def test_a_log_above_its_size_limit_trims_the_oldest_events(tmp_path: Path, seals: bool) -> None:
    pubend = filled(tmp_path, seals, Retention(), Time())
    whole = pubend.holdings.size_bytes
    shut(pubend)
    pubend = opened(tmp_path, retention=Retention(max_bytes=whole // 2))
    trimmed = pubend.trim()
    assert 0 < trimmed.lost_events < 200
    assert pubend.holdings.size_bytes <= whole // 2
    assert pubend.holdings.lost_upto == pubend.first_tick - 1
    shut(pubend)


def test_a_slow_stream_gets_its_segments_too(tmp_path: Path) -> None:
    """Or what is in its only segment could never go."""
    time = Time()
    keep = Retention(segment_age_s=HOUR_S)
    pubend = opened(tmp_path, segment_bytes=1 << 20, retention=keep, time=time)
    pubend.append_run(1, "alice", "e1", 1, bodies(3))
    pubend.acknowledged(3)
    assert pubend.trim().events == 0
    time.now_s += HOUR_S
    assert pubend.trim().events == 3
    assert pubend.first_tick == 4
    time.now_s += HOUR_S
    pubend.trim()
    settle(pubend)
    assert len(list(tmp_path.glob("*.log"))) == 1
    assert pubend.state.last_published("alice", "e1") == 3
    shut(pubend)
    again = opened(tmp_path, segment_bytes=1 << 20)
    assert (again.last_tick, again.state.last_published("alice", "e1")) == (3, 3)
    shut(again)


def test_the_log_shrinks_however_long_the_stream(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    sizes = []
    for _ in range(5):
        fill(pubend)
        pubend.seal_here()
        pubend.acknowledged(pubend.last_tick)
        pubend.trim()
        settle(pubend)
        sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert max(sizes) < 3 * min(sizes)
    assert pubend.state.last_published("alice", "e1") == 500
    shut(pubend)
