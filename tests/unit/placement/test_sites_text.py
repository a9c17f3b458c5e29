"""Files of sites with another placement."""

from __future__ import annotations

import tomllib

import pytest

from motet.errors import MisuseError
from motet.placement.graph import TopicPlacement
from motet.placement.sites_text import placed_text
from motet.sequencer.sites_file import Sites

FILE = """
[ordering]
line = ["S1", "S2"]
mode = "pairs"
lease_s = 5
[sites.S1]
listen = "127.0.0.1:7720"
topics = ["orders"]
[sites.S2]
listen = "127.0.0.1:7721"
address = "10.0.0.2:7721"
topics = ["prices.*", "alarms"]
"""
HOMES = {"orders": "S2", "alarms": "S1", "prices.gold": "S2", "prices.tin": "S1", 'ä"b': "S2"}


def test_only_placement_and_line_change() -> None:
    placement = TopicPlacement(("S2", "S1"), HOMES)
    text = placed_text(tomllib.loads(FILE), placement, "one line\nanother")
    assert text.startswith("# one line\n# another\n")
    before, after = Sites.parse(FILE), Sites.parse(text)
    assert tuple(after.places) == ("S2", "S1")
    assert (after.mode, after.seconds) == (before.mode, before.seconds)
    assert {name: (place.listen, place.address) for name, place in after.places.items()} == {
        name: (place.listen, place.address) for name, place in before.places.items()
    }
    config = after.config("S1")
    assert {topic: config.site_of(topic) for topic in HOMES} == HOMES


def test_topics_that_nobody_planned_live_where_they_lived() -> None:
    text = placed_text(tomllib.loads(FILE), TopicPlacement(("S2", "S1"), HOMES))
    config = Sites.parse(text).config("S1")
    assert [config.site_of(topic) for topic in ("prices.lead", "others")] == ["S2", "S1"]


def test_topics_that_a_rule_places_are_not_named() -> None:
    found = tomllib.loads(placed_text(tomllib.loads(FILE), TopicPlacement(("S1", "S2"), HOMES)))
    assert found["sites"]["S1"]["topics"] == ["prices.tin"]
    assert found["sites"]["S2"]["topics"] == ["prices.*", "orders", 'ä"b']


def test_other_sites_are_refused() -> None:
    with pytest.raises(
        MisuseError, match="the file has the sites S1, S2, and the placement S1, S3"
    ):
        placed_text(tomllib.loads(FILE), TopicPlacement(("S1", "S3"), {}))
