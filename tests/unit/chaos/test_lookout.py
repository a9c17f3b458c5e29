"""A broker counts as healthy when it was seen healthy; unplanned deaths are found."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from motet.chaos.chronicle import Chronicle
from motet.chaos.lookout import Lookout
from motet.chaos.plan import ChaosPlan
from motet.chaos.traffic import ChaosTraffic
from motet.fleet.process import BrokerProcess
from motet.fleet.proxy import LinkProxy
from motet.testing.topology import Tree

EDGE = ("B1", "B2")


def link(phase: str = "up", unacknowledged: int = 0) -> dict[str, Any]:
    return {"phase": phase, "unacknowledged": unacknowledged}


def answers(one: dict[str, Any], two: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"B1": {"links": {"B2": one}}, "B2": {"links": {"B1": two}}}


class Post:
    """A lookout over one real broker, beside a link that exists on paper."""

    def __init__(self, directory: Path) -> None:
        self.chronicle = Chronicle(Tree([EDGE]), covering=False, hop_s=1.0, lease_s=10.0)
        options = ("--durability", "volatile", "--listen", "127.0.0.1:0")
        self.broker = BrokerProcess("B1", options, directory)
        traffic = ChaosTraffic(ChaosPlan(brokers=2), self.chronicle, {})
        proxies: dict[tuple[str, str], LinkProxy] = {}
        self.lookout = Lookout(self.chronicle, {"B1": self.broker}, proxies, traffic)


@pytest_asyncio.fixture
async def post(tmp_path: Path) -> AsyncIterator[Post]:
    made = Post(tmp_path)
    yield made
    made.broker.end()


async def test_a_broker_is_well_when_it_answers(post: Post) -> None:
    await post.broker.start()
    assert post.chronicle.is_troubled("B1")
    assert list(await post.lookout.look()) == ["B1"]
    assert not post.chronicle.is_troubled("B1")


async def test_a_broker_under_a_fault_is_not_polled(post: Post) -> None:
    await post.broker.start()
    post.chronicle.afflict("B1")
    assert await post.lookout.look() == {}
    assert post.chronicle.is_troubled("B1")


async def test_a_broker_that_ends_by_itself_is_a_violation_and_comes_back(post: Post) -> None:
    await post.broker.start()
    await post.lookout.look()
    os.kill(post.broker.pid, signal.SIGKILL)
    await post.broker.ended()
    assert list(await post.lookout.look()) == ["B1"]
    ((guarantee, detail),) = post.chronicle.history.oddities
    assert guarantee == "invariants"
    assert "B1 ended by itself with SIGKILL" in detail
    assert post.broker.starts == 2


async def test_a_link_is_up_only_if_both_ends_say_so(post: Post) -> None:
    is_up = post.lookout._is_up
    assert is_up(EDGE, answers(link(), link()))
    assert not is_up(EDGE, answers(link(), link("greeting")))
    assert not is_up(EDGE, answers(link("down"), link()))
    assert not is_up(EDGE, answers(link(unacknowledged=1), link()))
    assert not is_up(EDGE, {"B1": {"links": {"B2": link()}}})
    for place in (EDGE, "B2"):
        post.chronicle.afflict(place)
        assert not is_up(EDGE, answers(link(), link()))
        post.chronicle.relieve(place)
    assert is_up(EDGE, answers(link(), link()))
