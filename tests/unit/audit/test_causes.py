"""Causes and circles, compared with what follows from their definition."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from motet.audit.causes import ClientStep, early_effects, one_circle

Steps = dict[str, list[ClientStep[str]]]


def made(event: str) -> ClientStep[str]:
    return ClientStep(event, True)


def knew(event: str) -> ClientStep[str]:
    return ClientStep(event, False)


def test_an_effect_before_its_cause_is_found_over_several_clients() -> None:
    clients: Steps = {
        "a": [made("question")],
        "b": [knew("question"), made("answer")],
        "c": [knew("answer"), made("comment")],
    }
    (found,) = early_effects({"s": ["comment", "question"]}, clients)
    assert (found.stream, found.effect, found.cause) == ("s", "comment", "question")
    assert early_effects({"s": ["question", "comment"]}, clients) == []


def test_what_a_client_has_published_before_is_a_cause_too() -> None:
    clients: Steps = {"a": [made("one"), made("other")]}
    assert len(early_effects({"s": ["other", "one"]}, clients)) == 1


def test_what_nobody_has_published_here_has_no_causes() -> None:
    clients: Steps = {"a": [knew("stranger"), made("own")]}
    assert early_effects({"s": ["own", "stranger"]}, clients) == []


def test_clients_that_knew_what_comes_later_do_not_stop_the_others() -> None:
    """A recording may contradict itself."""
    clients: Steps = {"a": [knew("b1"), made("a1")], "b": [knew("a1"), made("b1"), made("b2")]}
    assert [each.effect for each in early_effects({"s": ["b2", "b1"]}, clients)] == ["b2"]


@pytest.mark.parametrize("seed", range(200))
def test_early_effects_are_those_of_the_definition(seed: int) -> None:
    dice = random.Random(seed)
    names = ("a", "b", "c")
    clients: Steps = {name: [] for name in names}
    pasts: dict[str, set[str]] = {}
    knowledge: dict[str, set[str]] = {name: set() for name in names}
    for at in range(12):
        name, event = dice.choice(names), f"e{at}"
        pasts[event] = set(knowledge[name])
        clients[name].append(made(event))
        knowledge[name].add(event)
        for other in names:
            if dice.random() < 0.3:
                clients[other].append(knew(event))
                knowledge[other] |= {event} | pasts[event]
    events = list(pasts)
    dice.shuffle(events)
    streams = {"s": events[:6], "r": sorted(events, key=lambda each: int(each[1:]))}
    wrong = [
        stream
        for stream, got in streams.items()
        if any(set(got[at + 1 :]) & pasts[each] for at, each in enumerate(got))
    ]
    found = early_effects(streams, clients)
    assert [each.stream for each in found] == wrong
    for each in found:
        got = streams[each.stream]
        assert each.cause in pasts[each.effect]
        assert got.index(each.effect) < got.index(each.cause)


def test_a_circle_names_the_streams_that_make_it() -> None:
    streams = {"s": ["x", "y"], "r": ["y", "z"], "q": ["z", "x"], "p": ["w", "x"]}
    found = one_circle(streams)
    assert found is not None
    assert {stream for _, _, stream in found.steps} == {"s", "r", "q"}
    for one, other, stream in found.steps:
        assert (one, other) in pairwise(streams[stream])
    assert one_circle({"s": ["x", "y", "z"], "r": ["x", "z"]}) is None
