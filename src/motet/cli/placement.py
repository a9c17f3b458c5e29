"""What `motet pipeline placement` reads and shows, without Spark."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from motet.cli.console import Misuse, out, say, table
from motet.placement.graph import LinkDelays, TopicGraph, TopicPlacement
from motet.placement.prediction import PlacementForecast, predict
from motet.placement.search import best_placement
from motet.placement.sites_text import placed_text
from motet.protocol.sequencing.messages import CAUSAL
from motet.sequencer.sites_file import Sites

if TYPE_CHECKING:
    from motet.spark.placement.graph import RecordedGraph

ROWS: tuple[tuple[str, str], ...] = (
    ("timestamps within one site", "local"),
    ("… that is near the publisher", "near"),
    ("mean latency", "mean_ms"),
    ("95 % take at most", "p95_ms"),
    ("messages between sites per timestamp", "hops"),
    ("entries per timestamp", "entries"),
    ("timestamps that pass the busiest site", "busiest"),
)
SHARES = ("local", "near", "busiest")
NOTE = "The placement was planned from a recorded history: motet pipeline placement."


@dataclass(frozen=True)
class SitesToPlan:
    """A file of sites, and the delays of their links."""

    sites: Sites
    text: str
    delays: LinkDelays

    @staticmethod
    def load(path: Path, near_ms: float, far_ms: float, differing: Sequence[str]) -> SitesToPlan:
        sites = Sites.load(path)
        line = tuple(sites.places)
        delays = LinkDelays.uniform(line, near_ms, far_ms, dict(map(_delay, differing)))
        return SitesToPlan(sites, path.read_text(encoding="utf-8"), delays)

    @property
    def line(self) -> tuple[str, ...]:
        return tuple(self.sites.places)

    @property
    def mode(self) -> str:
        return self.sites.mode or CAUSAL

    def current(self, graph: TopicGraph) -> TopicPlacement:
        config = self.sites.config(self.line[0])
        return TopicPlacement(self.line, {topic: config.site_of(topic) for topic in graph.topics})

    def plan(
        self, recorded: RecordedGraph, seed: int, tell: Callable[[int, int, float], None]
    ) -> PlannedSites:
        graph, mode = recorded.graph, self.mode
        current = self.current(graph)
        planned = best_placement(
            graph, self.delays, mode, current=current, seed=seed, progress=tell
        )
        return PlannedSites(
            mode,
            graph,
            recorded.strays,
            current,
            planned,
            predict(graph, current, self.delays, mode),
            predict(graph, planned, self.delays, mode),
            self._checked(placed_text(tomllib.loads(self.text), planned, NOTE)),
        )

    def _checked(self, text: str) -> str:
        Sites.parse(text, "the planned file")
        return text


@dataclass(frozen=True)
class PlannedSites:
    mode: str
    graph: TopicGraph
    strays: int
    current: TopicPlacement
    planned: TopicPlacement
    before: PlacementForecast
    after: PlacementForecast
    text: str

    @property
    def moved(self) -> int:
        return sum(
            self.current.site_of(topic) != home for topic, home in self.planned.homes.items()
        )

    def as_dict(self) -> dict[str, Any]:
        graph = self.graph
        return {
            "mode": self.mode,
            "topics": len(graph.topics),
            "pairs": sum(map(len, graph.partners(self.mode).values())) // 2,
            "publications": sum(sum(places.values()) for places in graph.counts.values()),
            "strays": self.strays,
            "moved": self.moved,
            "current": _told(self.current, self.before),
            "planned": _told(self.planned, self.after),
        }

    def show(self) -> None:
        shown = table("", "predicted", "now", "planned", right=("now", "planned"))
        for what, name in ROWS:
            shown.add_row(
                what, *(_number(name, getattr(each, name)) for each in (self.before, self.after))
            )
        out().print(shown)
        say("")
        titles = ("topics now", "topics planned", "timestamps now", "timestamps planned")
        shown = table("", "site", *titles, right=titles)
        for site in self.planned.line:
            shown.add_row(
                site,
                *(str(len(each.topics_of(site))) for each in (self.current, self.planned)),
                *(f"{each.by_site[site]:.1%}" for each in (self.before, self.after)),
            )
        out().print(shown)
        told = self.as_dict()
        say(f"\npublications: {told['publications']:,.0f}")
        say(f"pairs of topics that are ordered together in mode {self.mode}: {told['pairs']:,}")
        say(f"topics that would move: {self.moved:,} of {told['topics']:,}")


def _told(placement: TopicPlacement, forecast: PlacementForecast) -> dict[str, Any]:
    homes: Mapping[str, str] = placement.homes
    return {**msgspec.to_builtins(forecast), "line": list(placement.line), "homes": dict(homes)}


def _number(name: str, value: float) -> str:
    if name in SHARES:
        return f"{value:.1%}"
    return f"{value:.1f} ms" if name.endswith("_ms") else f"{value:.2f}"


def _delay(text: str) -> tuple[tuple[str, str], float]:
    pair, equals, ms = text.partition("=")
    one, dash, other = pair.partition("-")
    try:
        if not (equals and dash and one and other):
            raise ValueError
        return (one.strip(), other.strip()), float(ms.removesuffix("ms"))
    except ValueError:
        raise Misuse(f"{text!r} is not a delay", "write --delay S1-S2=40") from None
