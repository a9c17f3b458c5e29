"""Topics as applications name them: one subject of the service, or many under one topic."""

from __future__ import annotations

from typing import NamedTuple

from motet.errors import TopicRefused


class Topic(NamedTuple):
    """A topic of many subjects: `Topic("orders", pattern="orders.>")`. Its events have one sequence
    of numbers, whatever their subject. Every client must use the same pattern for it."""

    name: str
    pattern: str = ""

    def matches(self, subject: str) -> bool:
        if not self.pattern:
            return subject == self.name
        separator = "/" if "/" in self.pattern or {"#", "+"} & set(self.pattern) else "."
        return _match(self.pattern.split(separator), subject.split(separator))


def _match(pattern: list[str], words: list[str]) -> bool:
    for at, wanted in enumerate(pattern):
        if wanted == "#":  # MQTT: also no word
            return True
        if wanted == ">":  # NATS: at least one
            return len(words) > at
        if at >= len(words) or wanted not in ("*", "+", words[at]):
            return False
    return len(pattern) == len(words)


def as_topic(given: str | Topic) -> Topic:
    if isinstance(given, Topic):
        return given
    if isinstance(given, str):
        return Topic(given)
    raise TopicRefused(f"a topic is a name or a Topic, not {given!r:.60}")
