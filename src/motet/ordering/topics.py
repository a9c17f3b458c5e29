"""Topics as applications name them: one subject of the service, or many under one topic."""

from __future__ import annotations

from typing import NamedTuple

from motet.errors import TopicRefused


class Topic(NamedTuple):
    """A topic of many subjects: `Topic("orders", pattern="orders.>")`. Its events have one sequence
    of numbers, whatever their subject. Every client must use the same pattern for it."""

    name: str
    pattern: str = ""


def as_topic(given: str | Topic) -> Topic:
    if isinstance(given, Topic):
        return given
    if isinstance(given, str):
        return Topic(given)
    raise TopicRefused(f"a topic is a name or a Topic, not {given!r:.60}")
