"""What a plan is made from: how often topics are published where, which topics sessions combine,
and how long links take. And what a plan is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final

from msgspec import Struct, field

from motet.errors import MisuseError

THRESHOLDS: Final = {"causal": 1, "pairs": 2}
"""By mode: how many sessions must have two topics, so that they are ordered together."""


class TopicGraph(Struct):
    """Topics, and how they are used. `sites` are places at the same time: a publisher is near to
    one of them."""

    sites: tuple[str, ...]
    counts: dict[str, dict[str, float]] = field(default_factory=dict)
    """By topic and place: its publications."""
    shared: dict[tuple[str, str], int] = field(default_factory=dict)
    """By two topics, in alphabetical order: how many sessions have both."""

    def published(self, topic: str, at: str, count: float = 1) -> None:
        """This many publications from near this site."""
        if at not in self.sites:
            raise MisuseError(f"{at} is none of the sites {', '.join(self.sites)}")
        if count < 0:
            raise MisuseError(f"{topic} cannot have {count} publications")
        places = self.counts.setdefault(topic, {})
        places[at] = places.get(at, 0) + count

    def combined(self, topics: Iterable[str], sessions: int = 1) -> None:
        """This many sessions have all these topics."""
        several = sorted(set(topics))
        for topic in several:
            self.counts.setdefault(topic, {})
        shared = self.shared
        for pair in combinations(several, 2):
            shared[pair] = shared.get(pair, 0) + sessions

    @property
    def topics(self) -> tuple[str, ...]:
        """In alphabetical order."""
        return tuple(sorted(self.counts))

    def partners(self, mode: str) -> dict[str, list[str]]:
        """By topic: its group, those that are ordered together with it. In alphabetical order."""
        found: dict[str, list[str]] = {topic: [] for topic in self.topics}
        threshold = _threshold(mode)
        for (one, other), sessions in sorted(self.shared.items()):
            if sessions >= threshold:
                found[one].append(other)
                found[other].append(one)
        return found


def _threshold(mode: str) -> int:
    if mode not in THRESHOLDS:
        raise MisuseError(f"unknown mode {mode!r}; use one of {', '.join(THRESHOLDS)}")
    return THRESHOLDS[mode]


class LinkDelays(Struct, frozen=True):
    """One-way delays in milliseconds. `near`: between a client and the site of its place. `far`:
    between two sites, and between a client at the one and the other."""

    near: Mapping[str, float]
    far: Mapping[tuple[str, str], float]
    """In both directions."""

    @staticmethod
    def uniform(
        sites: Sequence[str],
        near_ms: float,
        far_ms: float,
        differing: Mapping[tuple[str, str], float] | None = None,
    ) -> LinkDelays:
        """All the same, but for pairs of sites that are `differing`."""
        far = {(one, other): far_ms for one in sites for other in sites if one != other}
        for (one, other), ms in (differing or {}).items():
            if (one, other) not in far:
                raise MisuseError(f"no two of the sites {', '.join(sites)} are {one} and {other}")
            far[one, other] = far[other, one] = ms
        for ms in (near_ms, *far.values()):
            if not 0 <= ms < float("inf"):
                raise MisuseError(f"a delay is at least 0 ms, not {ms}")
        return LinkDelays(dict.fromkeys(sites, near_ms), far)

    def to_site(self, place: str, site: str) -> float:
        return self.near[site] if place == site else self.far[place, site]

    def between(self, one: str, other: str) -> float:
        return 0.0 if one == other else self.far[one, other]


class TopicPlacement(Struct, frozen=True):
    line: tuple[str, ...]
    """The sites, lowest first."""
    homes: Mapping[str, str]
    """By topic: its site."""
    elsewhere: str = ""
    """The site of topics that are not named; empty: the lowest one."""

    def site_of(self, topic: str) -> str:
        return self.homes.get(topic) or self.elsewhere or self.line[0]

    def topics_of(self, site: str) -> list[str]:
        return sorted(topic for topic, home in self.homes.items() if home == site)

    @staticmethod
    def by_name(line: Sequence[str], topics: Sequence[str]) -> TopicPlacement:
        """Equally many topics at each site of the line, in this sequence, as in the paper."""
        share = -(-len(topics) // len(line))
        return TopicPlacement(
            tuple(line), {topic: line[at // share] for at, topic in enumerate(topics)}
        )
