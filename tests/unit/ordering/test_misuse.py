"""Limits and misuse have names. See `test_core.py` of the sites for the same as claims of peers."""

from __future__ import annotations

from typing import Any

import pytest

from motet.errors import (
    MisuseError,
    MotetError,
    NotOffered,
    NotSubscribed,
    StreamRefused,
    TopicElsewhere,
    TopicRefused,
)
from motet.ordering import Topic, connect
from motet.ordering.client import MOST_BUFFER
from motet.ordering.contract import SiteClosed, WantAdd, WantClose, WantPublish, WantStream
from motet.ordering.services.memory import MemoryService
from motet.protocol.sequencing.messages import (
    MAX_STREAMS_OF_CLIENT,
    MAX_TOPICS_OF_STREAM,
    MAX_UNSETTLED,
    Keep,
    TopicIds,
)
from tests.unit.ordering.hand import Hand
from tests.unit.ordering.line import RunningLine, running_line


@pytest.fixture
def hand() -> Hand:
    return Hand().connect()


def refusal(hand: Hand, ticket: int) -> MotetError:
    found = dict(hand.out.receipts)[ticket]
    assert isinstance(found, MotetError)
    return found


# ── limits ───────────────────────────────────────────────────────────────────────────────


def test_a_stream_has_a_limit_of_topics(hand: Hand) -> None:
    names = [f"a.{number}" for number in range(MAX_TOPICS_OF_STREAM)]
    hand.do(WantStream(1, (*names, "a.more"), 5))
    assert isinstance(refusal(hand, 5), TopicRefused)
    hand.stream(*names, key=2)
    hand.do(WantAdd(2, 6, "a.more"))
    assert isinstance(refusal(hand, 6), TopicRefused)
    assert "at most 1000 topics" in str(refusal(hand, 6))


def test_a_client_has_a_limit_of_streams(hand: Hand) -> None:
    for key in range(1, MAX_STREAMS_OF_CLIENT + 1):
        hand.machine.steps([WantStream(key, ("a.x",))], hand.now)
    hand.do(WantStream(5000, ("a.x",), 5))
    assert isinstance(refusal(hand, 5), StreamRefused)
    assert 5000 not in hand.machine.streams


def test_signs_of_life_of_many_streams_fit_into_small_frames(hand: Hand) -> None:
    for key in range(1, 151):
        hand.stream("a.x", key=key)
    hand.after(20.0)
    frames = hand.said(Keep, "a")
    assert {len(each.streams) for each in frames} == {100, 50}


@pytest.mark.parametrize(
    "options",
    [
        {"window": MAX_UNSETTLED},
        {"window": 1.5},
        {"buffer": MOST_BUFFER + 1},
        {"buffer": "many"},
        {"key": b"short"},
        {"key": b"x" * 65},
        {"key": "a text of twenty letters"},
        {"client_id": "x" * 65},
    ],
)
async def test_options_have_bounds(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(MisuseError, match=name):
        await connect("memory://bounds", sequencer="inproc://nobody", **options)


async def test_a_client_has_a_limit_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motet.ordering.client.MOST_TOPICS", 2)
    async with running_line("a") as line, await line.client("x") as x:
        await x.subscribe("one", "two")
        await x.subscribe("two", "one")
        with pytest.raises(TopicRefused, match="at most 2 topics"):
            await x.subscribe("three")


# ── misuse ───────────────────────────────────────────────────────────────────────────────


def test_a_topic_that_its_site_does_not_know_lives_elsewhere(hand: Hand) -> None:
    hand.do(WantPublish(5, "a.x", b""))
    hand.frame("a", TopicIds({}))
    assert isinstance(refusal(hand, 5), TopicElsewhere)
    hand.do(WantStream(1, ("a.y",), 6))
    hand.frame("a", TopicIds({}))
    assert isinstance(refusal(hand, 6), TopicElsewhere)
    assert not hand.machine.streams


def test_a_topic_that_its_site_refuses_lives_elsewhere(hand: Hand) -> None:
    hand.do(WantStream(1, ("a.y",), 6))
    hand.do(SiteClosed("a", "topic 'a.y' lives at b, not at a"))
    assert isinstance(refusal(hand, 6), TopicElsewhere)
    assert "lives at b" in str(refusal(hand, 6))
    hand.do(WantClose(1, 7))
    assert dict(hand.out.receipts)[7] == {}


async def test_a_topic_elsewhere_is_named_by_real_sites() -> None:
    """The placement of a site has changed, and its client has the former one."""
    async with running_line("a", "b") as line, await line.client("x") as x:
        x.machine._placement = (("b.*", "a"), ("a.*", "a"))
        with pytest.raises(TopicElsewhere):
            await x.publish("b.topic", b"")
        with pytest.raises(TopicElsewhere):
            await x.subscribe("b.other")


class Closed(MemoryService):
    """A service that refuses a topic."""

    async def subscribe(self, topic: str) -> None:
        raise MisuseError(f"{topic} is closed to you")


async def test_a_service_that_refuses_a_topic_is_named() -> None:
    async with running_line("a") as line:
        service = Closed(line.service)
        async with connect(service, sequencer=line.address) as x:
            with pytest.raises(NotSubscribed, match="closed to you"):
                await x.subscribe("one")


@pytest.fixture
async def line() -> Any:
    async with running_line("a") as made:
        yield made


async def test_what_a_service_does_not_have_is_named(line: RunningLine) -> None:
    async with await line.client("x") as x:
        with pytest.raises(NotOffered, match="no patterns"):
            await x.subscribe(Topic("orders", pattern="orders.>"))

    class Headless(MemoryService):
        most_header_bytes = 0

    with pytest.raises(NotOffered, match="no headers"):
        await connect(Headless(line.service), sequencer=line.address, headers=True)
