"""A site records what it has told, and only what it could tell."""

from __future__ import annotations

from typing import Any

import pytest

from motet.protocol.contract import Output, Received
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.sequencing.messages import NumberRequest, OrderHello, TopicQuery
from motet.sequencer.config import SiteConfig
from motet.sequencer.core import SiteCore
from motet.sequencer.history import SiteHistory

Row = tuple[str, dict[str, Any]]


class Rows:
    """In the place of a recording."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, table: str, row: dict[str, Any]) -> None:
        self.rows.append((table, row))

    def close(self) -> None: ...

    def of(self, table: str) -> list[dict[str, Any]]:
        return [row for name, row in self.rows if name == table]


class Recorded:
    """A site whose journal is as durable as the test says."""

    def __init__(self) -> None:
        self.core = SiteCore(SiteConfig("S1"))
        self.rows = Rows()
        self.history = SiteHistory(self.core, self.rows)  # type: ignore[arg-type]
        self.position = 0
        self.step(OrderHello(PROTOCOL_VERSION, "alice"))

    def step(self, frame: Any) -> Output:
        out = self.core.step(Received(1, frame), 1.0)
        self.position += len(out.persist)
        self.history.wrote(self.position, out)
        return out


@pytest.fixture
def site() -> Recorded:
    return Recorded()


def test_a_number_is_recorded_when_its_fact_is_durable(site: Recorded) -> None:
    site.step(TopicQuery(("a", "b")))
    site.step(NumberRequest(1, (0, 1, 0)))
    assert {name for name, _ in site.rows.rows} == {"order_sites"}
    site.history.durable(1)
    assert [(row["topic"], row["id"]) for row in site.rows.of("order_topics")] == [
        ("a", 0),
        ("b", 1),
    ]
    assert site.rows.of("order_numbers") == []
    site.history.durable(2)
    numbers = site.rows.of("order_numbers")
    assert [(row["request"], row["topic"], row["number"]) for row in numbers] == [
        (1, "a", 1),
        (2, "b", 1),
        (3, "a", 2),
    ]
    assert [row["nth"] for row in numbers] == [1, 2, 3]
    assert {(row["site"], row["client"]) for row in numbers} == {("S1", "alice")}


def test_an_answer_that_is_repeated_is_recorded_again(site: Recorded) -> None:
    site.step(TopicQuery(("a",)))
    for _ in range(2):
        site.step(NumberRequest(1, (0,)))
    site.history.durable(site.position)
    found = [(row["request"], row["number"]) for row in site.rows.of("order_numbers")]
    assert found == [(1, 1), (1, 1)]


def test_what_is_not_durable_when_the_site_stops_was_told_to_nobody(site: Recorded) -> None:
    site.step(TopicQuery(("a",)))
    site.history.close()
    assert site.rows.of("order_topics") == []


def test_topics_of_an_earlier_life_are_recorded_at_once(site: Recorded) -> None:
    site.step(TopicQuery(("a",)))
    rows = Rows()
    SiteHistory(site.core, rows)  # type: ignore[arg-type]
    assert [row["topic"] for row in rows.of("order_topics")] == ["a"]
