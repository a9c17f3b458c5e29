"""What `motet status` shows of one broker's answer."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rich.console import Console

from motet.cli.status import of_broker, page_of
from motet.errors import PeerError


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


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"site": "S1"}, "x is a site of a sequencer: `motet order status` shows it"),
        ({"witness": 7}, "x is a witness of sites, not a broker"),
    ],
)
def test_what_is_no_broker_is_named(answer: dict[str, Any], text: str) -> None:
    found = of_broker("x", answer)
    assert isinstance(found, PeerError)
    assert str(found) == text
    assert of_broker("x", state())["broker"] == "B2"  # type: ignore[index]


def test_a_short_wait_is_not_shown_as_a_stall() -> None:
    stall = {"clients": 1, "since_s": time.time()}
    assert "B3.7" not in shown(state(total_order={"clients": 4, "waiting_for": {"B3.7": stall}}))
    assert "total order" not in shown(state())


# ── hosted clients ───────────────────────────────────────────────────────────────────────


def hosted(state: str, error: str = "") -> dict[str, Any]:
    return {"class": "shop:Counter", "home": "B2", "state": state, "failures": 3, "error": error}


def test_hosted_clients_are_shown_where_they_run_or_fail() -> None:
    container = {
        "counter": hosted("running"),
        "broken": hosted("waiting", "ValueError: no"),
        "elsewhere": hosted("absent"),
    }
    text = shown(state(container=container))
    assert [line.split() for line in text.splitlines() if "shop:" in line] == [
        ["B2", "counter", "shop:Counter", "running", "3"],
        ["B2", "broken", "shop:Counter", "waiting", "3"],
    ]
    assert "broken at B2: ValueError: no" in text
    assert "elsewhere" not in text


# ── moves ────────────────────────────────────────────────────────────────────────────────


def departing(**phases: tuple[str, str]) -> dict[str, Any]:
    return {
        client: {"to": "B3", "phase": phase, "waits_for": busy}
        for client, (phase, busy) in phases.items()
    }


def lines_of(text: str, title: str) -> list[list[str]]:
    lines = [line.split() for line in text.splitlines()]
    at = lines.index([title])
    return lines[at + 2 : lines.index([], at)]


def test_moves_under_way_are_shown_at_the_broker_that_the_client_leaves() -> None:
    moves = {
        "departing": departing(
            ann=("waiting", "3 requests"), bob=("offering", ""), cleo=("frozen", "")
        ),
        "in_transit": {
            "dora": {"from": "B2", "to": "B4"},
            "passes": {"from": "B1", "to": "B4"},
        },
        "residues": [],
    }
    assert lines_of(shown(state(moves=moves)), "moves") == [
        ["B2", "ann", "B3", "waits", "for", "3", "requests"],
        ["B2", "bob", "B3", "asks", "B3"],
        ["B2", "cleo", "B3", "decides"],
        ["B2", "dora", "B4", "on", "its", "way"],
    ]


def test_many_moves_are_counted() -> None:
    many = departing(**{f"c{number}": ("offering", "") for number in range(25)})
    rows = lines_of(shown(state(moves={"departing": many})), "moves")
    assert len(rows) == 21
    assert rows[-1] == ["…", "5", "more"]


def test_residues_are_shown() -> None:
    moves = {"residues": ["ann", "bob"]}
    assert lines_of(shown(state(moves=moves)), "residues") == [["B2", "2", "ann"]]


def test_without_moves_there_is_nothing_about_them() -> None:
    text = shown(state(moves={"departing": {}, "in_transit": {}, "residues": []}, draining=False))
    assert "moves" not in text
    assert "residues" not in text
    assert "draining" not in text


@pytest.mark.parametrize(
    ("count", "towards", "said"),
    [
        (0, [], "B2 is draining: 0 clients left\n"),
        (1, [], "B2 is draining: 1 client left\n"),
        (3, ["B1", "B3"], "B2 is draining: 3 clients left, its log is owed towards B1, B3\n"),
    ],
)
def test_who_drains_is_shown(count: int, towards: list[str], said: str) -> None:
    owed = {"owed": bool(towards), "towards": towards}
    answer = state(draining=True, log_owed=owed, session_count=count)
    text = "\n".join(line.rstrip() for line in shown(answer).splitlines()) + "\n"
    assert said in text
