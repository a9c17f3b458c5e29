"""Options for retention, and which events a broker removes because of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from motet.broker.folder.retention import (
    DEFAULT,
    LEAST_SEGMENT_S,
    retention_in,
    retention_of,
    segment_bytes,
)
from motet.broker.overlay.topology import Topology
from motet.errors import MisuseError, TopologyError
from motet.runtime.pubend import Disk, Retention
from motet.runtime.pubend.retention import DAY_S
from tests.unit.pubend.ground import Time, fill, opened, shut

FILE = """
[overlay]
retention = { history = "2h", size = "1GiB" }
[brokers.B1]
listen = "127.0.0.1:7701"
[brokers.B2]
listen = "127.0.0.1:7702"
links = ["B1"]
retention = { age = "30m", free = 0.2 }
"""


def test_a_topology_sets_retention_for_all_brokers_or_for_one() -> None:
    topology = Topology.parse(FILE)
    one, two = topology.retention_of("B1"), topology.retention_of("B2")
    assert (one.keep_s, one.max_bytes, one.max_age_s) == (7200.0, 1 << 30, 7 * DAY_S)
    assert (two.keep_s, two.max_bytes, two.max_age_s) == (7200.0, 1 << 30, 1800.0)
    assert two.min_free_share == 0.2
    assert two.segment_age_s == 1800.0 / 8
    assert Topology.parse(topology.to_toml()) == topology


@pytest.mark.parametrize("history", ["30d", "1234567s", "90000d", "0.00001s"])
def test_a_topology_written_again_keeps_every_time_as_it_is(history: str) -> None:
    topology = Topology.parse(FILE.replace("2h", history))
    assert Topology.parse(topology.to_toml()) == topology


def test_a_day_of_history_is_kept_by_default() -> None:
    assert retention_in("") == DEFAULT == Topology.line(1).retention_of("B1")
    assert DEFAULT.keep_s == DAY_S
    assert segment_bytes(DEFAULT) == 64 << 20


def test_a_small_size_limit_makes_small_segments() -> None:
    made = retention_in("size=1MiB, age=1s history=0s")
    assert segment_bytes(made) == 128 << 10
    assert (made.keep_s, made.max_age_s, made.segment_age_s) == (0.0, 1.0, LEAST_SEGMENT_S)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"ages": "1d"}, "'ages' is not known here; there are history, age, size"),
        ({"age": "one day"}, "age: 'one day' is not a time like 90s"),
        ({"age": "3w"}, "age: '3w' is not a time"),
        ({"age": -1}, "age: -1 is not a time"),
        ({"size": "10GB"}, "size: '10GB' is not a size like 512MiB or 10GiB"),
        ({"size": "1KiB"}, "size: '1KiB' is too small"),
        ({"share": 2}, "share: 2 is not a share of the disk"),
        ({"free": "much"}, "free: 'much' is not a share"),
    ],
)
def test_invalid_retention_is_misuse(table: dict[str, Any], text: str) -> None:
    with pytest.raises(MisuseError, match=text):
        retention_of(table)


def test_a_file_that_makes_no_sense_names_the_place() -> None:
    with pytest.raises(TopologyError, match=r"shop.toml: brokers.B2.retention: age: '30 years'"):
        Topology.parse(FILE.replace("30m", "30 years"), "shop.toml")
    with pytest.raises(MisuseError, match="'10GiB' is not key=value"):
        retention_in("10GiB")


# ── the disk ─────────────────────────────────────────────────────────────────────────────


def test_history_goes_before_the_disk_is_full(tmp_path: Path) -> None:
    """And no more of it than is lacking; what somebody is owed stays."""
    pubend = opened(tmp_path, retention=Retention(keep_s=DAY_S, min_free_share=0.1), time=Time())
    fill(pubend)
    pubend.acknowledged(100)
    size = pubend.holdings.size_bytes
    roomy = Disk(100 * size, 50 * size)
    assert pubend.trim(roomy).events == 0
    lacking = Disk(100 * size, 10 * size - size // 4)
    trimmed = pubend.trim(lacking)
    assert 0 < trimmed.floor < 100
    assert trimmed.lost_events == 0
    assert size // 2 < pubend.holdings.size_bytes <= size - size // 4
    trimmed = pubend.trim(Disk(100 * size, 0))
    assert 0 < trimmed.floor <= 100
    assert pubend.trim(Disk(100 * size, 0)).events == 0
    shut(pubend)


def test_a_log_takes_no_more_than_its_share_of_the_disk(tmp_path: Path) -> None:
    pubend = opened(tmp_path, retention=Retention(max_share=0.5), time=Time())
    fill(pubend)
    size = pubend.holdings.size_bytes
    trimmed = pubend.trim(Disk(size, size))
    assert trimmed.lost_events > 0
    assert pubend.holdings.size_bytes <= size // 2
    assert pubend.holdings.lost_upto == trimmed.floor
    shut(pubend)


def test_a_log_may_begin_behind_what_was_lost(tmp_path: Path) -> None:
    from motet.runtime.pubend import Lost, PubendLog

    pubend = PubendLog.open(tmp_path, "b1/0", begin_behind=500)
    assert (pubend.last_tick, pubend.first_tick, pubend.holdings.lost_upto) == (500, 501, 500)
    assert list(pubend.read(3, 700)) == [Lost(3, 500)]
    shut(pubend)
    again = PubendLog.open(tmp_path, "b1/0", begin_behind=900)
    assert (again.last_tick, again.holdings.lost_upto) == (500, 500)
    shut(again)
