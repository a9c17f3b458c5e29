"""The parts of `motet bench journal`, each for a moment: they count what really happened."""

from __future__ import annotations

from pathlib import Path

from motet.bench import stand

CLIENTS = 4
SUBSCRIPTIONS = 1500


def test_the_journal_has_every_operation_that_was_answered(tmp_path: Path) -> None:
    with stand.broker(data=tmp_path) as broker:
        heard = stand.hear_from("churn", broker.address, broker.pid, CLIENTS, 0.2)
    loaded = stand.hear_from("comeback", "load", tmp_path)
    assert heard["operations_per_s"] > 0
    assert heard["cpu_us_per_operation"] > 0
    assert loaded["facts"] > heard["answered"] > 0


def test_one_operation_takes_one_group_commit_at_every_stop(tmp_path: Path) -> None:
    folders = [tmp_path / "B1", tmp_path / "B2"]
    with stand.line(2, data=folders) as (first, last):
        heard = stand.hear_from("settling", first.address, last.address, 20, *folders)
    assert heard["commits"] == 3  # there, at the far end, and for the echo
    assert heard["p50_us"] > 0


def test_a_snapshot_is_taken_under_watch_and_loaded(tmp_path: Path) -> None:
    filled = stand.hear_from("comeback", "fill", tmp_path, SUBSCRIPTIONS)
    assert filled["subscriptions"] == SUBSCRIPTIONS
    paused = stand.hear_from("comeback", "pause", tmp_path, 0.1)
    assert paused["pause_ms"] >= 0
    assert len(list(tmp_path.glob("*.snapshot"))) == 1
    assert stand.hear_from("comeback", "load", tmp_path)["subscriptions"] == SUBSCRIPTIONS
