"""What `motet status` shows of one broker's answer."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rich.console import Console

from motet.cli.status import page_of


def state(**more: Any) -> dict[str, Any]:
    """What a broker without anything says."""
    names = (
        "advertisements",
        "subscriptions",
        "buffered_subscriptions",
        "clients",
        "waiting_operations",
        "ignored_messages",
    )
    numbers = dict.fromkeys(("events_in_per_s", "events_out_per_s", "events_in", "events_out"), 0)
    return {
        "broker": "B2",
        "process": {"address": "x", "engine": "c", "loop": "l", "pid": 1, "uptime_s": 1.0},
        "traffic": numbers,
        "dropped_events": 0,
        "counts": {"refused": 0},
        "tables": dict.fromkeys(names, 0),
        "session_count": 0,
        "sessions_away": 0,
        "links": {},
        "connections": [],
    } | more


def shown(answer: dict[str, Any]) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(page_of({"B2": "x"}, {"B2": answer}))
    return capture.get()


@pytest.mark.parametrize(("clients", "said"), [(1, "1 client in"), (3, "3 clients in")])
def test_the_status_names_the_pubend_that_total_order_waits_for(clients: int, said: str) -> None:
    stall = {"clients": clients, "since_s": time.time() - 60}
    text = shown(state(total_order={"clients": 4, "waiting_for": {"B3.7": stall}}))
    assert f"events of {said} total order wait for B3.7 since" in text


def test_a_short_wait_is_not_shown_as_a_stall() -> None:
    stall = {"clients": 1, "since_s": time.time()}
    assert "B3.7" not in shown(state(total_order={"clients": 4, "waiting_for": {"B3.7": stall}}))
    assert "total order" not in shown(state())
