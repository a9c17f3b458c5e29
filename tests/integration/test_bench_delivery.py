"""The parts of `motet bench delivery`, each for a moment: they count what really happened."""

from __future__ import annotations

from pathlib import Path

from motet.bench import delivery, stand

EVENTS = 2000


def test_both_ways_through_a_chain_and_nothing_is_lost(tmp_path: Path) -> None:
    with stand.line(3, data=delivery.folders(tmp_path)) as line:
        for how in ("publish", "log"):
            heard = delivery.stream(line, how, EVENTS)
            assert heard["lost"] == 0
            assert heard["rate"] > 0
            assert all(heard[role] > 0 for role in delivery.ROLES)


def test_one_event_takes_one_group_commit(tmp_path: Path) -> None:
    with stand.broker(data=tmp_path) as broker:
        before = delivery.commits(tmp_path)
        heard = stand.hear_from("load", "ping", broker.address, broker.address, 20, 50, "sure")
        after = delivery.commits(tmp_path)
    assert heard["p50_us"] > 0
    assert after - before == 20
