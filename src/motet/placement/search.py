"""A local search for the placement with the lowest mean latency.

From several beginnings (the given placement, each topic where it is published most, all at one
site) it moves single topics as long as that helps. A topic is often held up by several others at a
site, each of which alone does not matter; so it also moves all topics of one site to another one,
the least published first, or a topic with its group, and goes back to the best moment of that. Then
it tries other lines, and begins again from shaken copies of the best placement, in turns with its
line and with a line drawn by lot.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import permutations, product
from typing import Final

from motet.errors import MisuseError
from motet.placement.graph import LinkDelays, TopicGraph, TopicPlacement
from motet.placement.prediction import passage_ms

LEAST_ROUNDS: Final = 8
SHAKEN_TOPICS: Final = 1000
"""How often the best placement is shaken: more often if there are few topics."""
SHAKEN: Final = 0.2
"""The share of topics that then go anywhere."""
GATHERED: Final = 20
"""Topics with larger groups are not moved with their group."""
ALL_LINES: Final = 5
"""Up to this many sites every line is tried, else the exchanges of two sites."""
LEAST_GAIN: Final = 1e-9
"""Milliseconds of the mean: less is noise of rounding."""
Progress = Callable[[int, int, float], None]
"""Of so many rounds, so many are done; the best mean latency in milliseconds."""


def best_placement(
    graph: TopicGraph,
    delays: LinkDelays,
    mode: str,
    *,
    current: TopicPlacement | None = None,
    seed: int = 0,
    rounds: int | None = None,
    progress: Progress | None = None,
) -> TopicPlacement:
    """The best that the search finds; never worse than `current`."""
    if not graph.sites:
        raise MisuseError("a placement needs a site at least; name one")
    search = _Search(graph, delays, mode)
    line = tuple(graph.sites) if current is None else current.line
    if sorted(line) != sorted(graph.sites):
        raise MisuseError(
            f"the current line has the sites {', '.join(line)}, and the graph "
            f"{', '.join(graph.sites)}: give the same ones"
        )
    tell = progress or _silence
    if rounds is None:
        rounds = max(LEAST_ROUNDS, SHAKEN_TOPICS // max(1, len(search.topics)))
    starts = [] if current is None else [[current.site_of(topic) for topic in search.topics]]
    starts += search.beginnings()
    best = min((search.improved(line, homes) for homes in starts), key=lambda found: found.cost)
    dice = random.Random(seed)
    for done in range(rounds):
        tell(done, rounds, best.cost / search.total)
        other = tuple(dice.sample(best.line, len(best.line))) if done % 2 else best.line
        found = search.improved(other, best.shaken(dice))
        if found.cost < best.cost - search.least_gain:
            best = found
    tell(rounds, rounds, best.cost / search.total)
    return TopicPlacement(
        best.line, {topic: best.line[best.home[at]] for at, topic in enumerate(search.topics)}
    )


def _silence(done: int, rounds: int, mean_ms: float) -> None:
    del done, rounds, mean_ms


class _Search:
    """The graph with topics and sites as integers."""

    def __init__(self, graph: TopicGraph, delays: LinkDelays, mode: str) -> None:
        self.sites: Final = tuple(graph.sites)
        self.topics: Final = graph.topics
        self.delays: Final = delays
        place = {topic: at for at, topic in enumerate(self.topics)}
        groups = graph.partners(mode)
        self.partners: Final = [
            tuple(place[other] for other in groups[topic]) for topic in self.topics
        ]
        counts = graph.counts
        self.rate: Final = [sum(counts[topic].values()) for topic in self.topics]
        self.total: Final = sum(self.rate) or 1.0
        self.least_gain: Final = LEAST_GAIN * self.total
        self.access: Final = {
            site: [
                sum(2 * delays.to_site(at, site) * count for at, count in counts[topic].items())
                for topic in self.topics
            ]
            for site in self.sites
        }
        """By site and topic: what its publishers wait if it lives there."""
        self.lightest: Final = sorted(range(len(self.topics)), key=self.rate.__getitem__)

    def beginnings(self) -> Iterator[list[str]]:
        """By topic: its site."""
        yield [
            min(self.sites, key=lambda site: self.access[site][topic])
            for topic in range(len(self.topics))
        ]
        for site in self.sites:
            yield [site] * len(self.topics)

    def improved(self, line: Sequence[str], homes: Sequence[str]) -> _State:
        state = _State(self, tuple(line), homes)
        while True:
            before = state.cost
            state.descend()
            state.sweep()
            state = state.with_best_line()
            if state.cost >= before - self.least_gain:
                return state

    def lines(self, line: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
        if len(line) <= ALL_LINES:
            return permutations(line)
        return _exchanged(line)


def _exchanged(line: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for one in range(len(line)):
        for other in range(one):
            swapped = list(line)
            swapped[one], swapped[other] = swapped[other], swapped[one]
            yield tuple(swapped)


class _State:
    """A placement, and what is needed to change it topic by topic. Sites are positions."""

    def __init__(self, search: _Search, line: tuple[str, ...], homes: Sequence[str]) -> None:
        self._search = search
        self.line = line
        position = {site: at for at, site in enumerate(line)}
        self.home = [position[site] for site in homes]
        self._passing = passage_ms(line, search.delays)
        self._access = [search.access[site] for site in line]
        width = len(line)
        self._counts = [[0] * width for _ in self.home]
        """By topic and position: how many of its group live there."""
        for topic, group in enumerate(search.partners):
            counts = self._counts[topic]
            for other in group:
                counts[self.home[other]] += 1
        self._top = [_highest(counts, width) for counts in self._counts]
        """By topic: the highest position of its group; -1 without one."""
        self.cost = sum(map(self._cost, range(len(self.home))))

    def _cost(self, topic: int) -> float:
        home = self.home[topic]
        top = max(home, self._top[topic])
        rate = self._search.rate[topic]
        return self._access[home][topic] + rate * self._passing[home][top]

    @property
    def homes(self) -> list[str]:
        return [self.line[at] for at in self.home]

    # ── one topic ────────────────────────────────────────────────────────────────────────

    def gain(self, topic: int, there: int) -> float:
        """How much lower the cost is if the topic lives there."""
        search, passing, home, tops = self._search, self._passing, self.home, self._top
        here = home[topic]
        rate, top = search.rate[topic], tops[topic]
        gain = (
            self._access[here][topic]
            - self._access[there][topic]
            + rate * (passing[here][max(here, top)] - passing[there][max(there, top)])
        )
        rates = search.rate
        if there < here:
            counts = self._counts
            for other in search.partners[topic]:
                if tops[other] == here and counts[other][here] == 1:
                    at = home[other]
                    if at < here:
                        highest = max(there, at, _highest(counts[other], here))
                        gain += rates[other] * (passing[at][here] - passing[at][highest])
        else:
            for other in search.partners[topic]:
                top, at = tops[other], home[other]
                if top < there > at:
                    gain += rates[other] * (passing[at][max(top, at)] - passing[at][there])
        return gain

    def move(self, topic: int, there: int, gain: float) -> None:
        here = self.home[topic]
        tops = self._top
        for other in self._search.partners[topic]:
            counts = self._counts[other]
            counts[here] -= 1
            counts[there] += 1
            top = tops[other]
            if there > top:
                tops[other] = there
            elif top == here and not counts[here]:
                tops[other] = _highest(counts, here)
        self.home[topic] = there
        self.cost -= gain

    def descend(self) -> None:
        """Move single topics, the most published first, as long as any of them helps."""
        helped = True
        while helped:
            helped = False
            for topic in reversed(self._search.lightest):
                here = self.home[topic]
                others = [at for at in range(len(self.line)) if at != here]
                gains = [(self.gain(topic, there), -there) for there in others]
                gain, there = max(gains, default=(0.0, 0))
                if gain > self._search.least_gain:
                    self.move(topic, -there, gain)
                    helped = True

    # ── many topics ──────────────────────────────────────────────────────────────────────

    def sweep(self) -> None:
        """Move all topics of each site to each other one; and each topic with its group."""
        search = self._search
        positions = range(len(self.line))
        for here, there in product(positions, positions):
            if here != there:
                self._move_many(
                    [each for each in search.lightest if self.home[each] == here], there
                )
        for topic in reversed(search.lightest):
            group = (topic, *search.partners[topic])
            for there in positions if len(group) <= GATHERED else ():
                self._move_many(group, there)

    def _move_many(self, topics: Iterable[int], there: int) -> None:
        """In this sequence, and go back to the best moment."""
        moved: list[tuple[int, int]] = []
        gained = best = 0.0
        kept = 0
        for topic in topics:
            here = self.home[topic]
            if here == there:
                continue
            gain = self.gain(topic, there)
            self.move(topic, there, gain)
            moved.append((topic, here))
            gained += gain
            if gained > best + self._search.least_gain:
                best, kept = gained, len(moved)
        for topic, here in reversed(moved[kept:]):
            self.move(topic, here, self.gain(topic, here))

    # ── the line ─────────────────────────────────────────────────────────────────────────

    def with_best_line(self) -> _State:
        homes = self.homes
        best = self
        for line in self._search.lines(self.line):
            if line != self.line:
                other = _State(self._search, line, homes)
                if other.cost < best.cost - self._search.least_gain:
                    best = other
        return best

    def shaken(self, dice: random.Random) -> list[str]:
        """Its homes, but for some topics."""
        homes = self.homes
        for topic in range(len(homes)):
            if dice.random() < SHAKEN:
                homes[topic] = dice.choice(self.line)
        return homes


def _highest(counts: list[int], below: int) -> int:
    """The highest position below that one with topics; -1: there is none."""
    while below:
        below -= 1
        if counts[below]:
            return below
    return -1
