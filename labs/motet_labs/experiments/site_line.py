"""The sites of the experiment: real processes in one line, with wide-area links between them, and
between them and the clients of each region."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from motet.fleet.process import HOST, SiteProcess, cpu_s, free_addresses
from motet.placement.graph import TopicPlacement
from motet.runtime.loop import run
from motet.runtime.tcp import address_of, host_and_port
from motet_labs.experiments import region_load, wide_links
from motet_labs.experiments.regions import Regions, name_of
from motet_labs.experiments.wide_links import DOWN, between_sites, from_region
from motet_labs.processes import Worker, worker

KEPT_S: Final = 3600
LEASE_S: Final = 600
"""Streams of the load say nothing, and numbers are confirmed late if the machine is overloaded."""
HEARTBEAT_S: Final = 10


@dataclass(frozen=True)
class LineRun:
    """What one load came to. `outgoing`: by site, the share of its outgoing bytes that goes to the
    next site up the line; `cores`: that were busy, by kind of process."""

    latency: Mapping[str, Any]
    outgoing: Mapping[str, float]
    cores: Mapping[str, float]
    at_s: float
    """When it began, on the clock of the links."""

    @property
    def others(self) -> float:
        """The cores that other processes of the machine kept busy."""
        return self.cores["others"]


class SiteLine:
    """Sites that run, with streams and publishers."""

    def __init__(
        self,
        sites: Mapping[str, SiteProcess],
        links: Worker,
        load: Worker,
        origin: float,
    ) -> None:
        self._sites = sites
        self._links = links
        self._load = load
        self._origin = origin

    def run(self, per_s: float, warm_s: float, seconds: float, seed: int) -> LineRun:
        before, used, clock = self._links.ask("sent"), self._cpu_s(), time.monotonic()
        how = {"per_s": per_s, "warm_s": warm_s, "seconds": seconds, "seed": seed}
        told = self._load.ask("run", **how)
        took_s = time.monotonic() - clock
        cores = {kind: (spent - used[kind]) / took_s for kind, spent in self._cpu_s().items()}
        cores["others"] -= sum(busy for kind, busy in cores.items() if kind != "others")
        sent = {way: count - before.get(way, 0) for way, count in self._links.ask("sent").items()}
        return LineRun(told, self._outgoing(sent), cores, told["began"] - self._origin)

    def _cpu_s(self) -> dict[str, float]:
        return {
            "sites": sum(cpu_s(site.pid) for site in self._sites.values()),
            "links": cpu_s(self._links.pid),
            "clients": cpu_s(self._load.pid),
            "others": _machine_s(),
        }

    def _outgoing(self, sent: Mapping[str, int]) -> dict[str, float]:
        """Of the bytes that go up the line, and to clients: those that go up."""
        line = list(self._sites)
        found = {}
        for place, site in enumerate(line):
            up = 0
            if place + 1 < len(line):
                up = sent.get(f"{between_sites(site, line[place + 1])[0]} {DOWN}", 0)
            answered = sum(sent.get(f"{from_region(each, site)[0]} {DOWN}", 0) for each in line)
            found[site] = up / (up + answered) if up + answered else 0.0
        return found


def _machine_s() -> float:
    """CPU seconds of all processes of the machine."""
    import psutil

    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


@contextmanager
def site_line(
    folder: Path,
    placement: TopicPlacement,
    mode: str,
    regions: Regions,
    streams: Sequence[Sequence[int]],
) -> Iterator[SiteLine]:
    """Start everything, and open the streams."""
    line = placement.line
    with ExitStack() as stack:
        links = _ready(stack.enter_context(worker(wide_links.wide_links)))
        load = _ready(stack.enter_context(worker(region_load.region_load)))
        at = dict(zip(line, free_addresses(len(line)), strict=True))
        rows = [
            (*between_sites(lower, higher), lower)
            for place, lower in enumerate(line)
            for higher in line[place + 1 :]
        ]
        rows += [(*from_region(region, site), site) for region in line for site in line]
        opened = links.ask(
            "open", rows=[(name, link, host_and_port(at[site])[1]) for name, link, site in rows]
        )
        through = {name: address_of(HOST, port) for name, port in opened["ports"].items()}
        sites = {}
        for name in line:
            file = folder / f"{name}.toml"
            file.write_text(_file(placement, mode, name, at, through), encoding="utf-8")
            place = folder / name
            place.mkdir()
            sites[name] = SiteProcess(name, ("--sites", str(file)), place)
        stack.enter_context(_running(list(sites.values())))
        load.ask(
            "prepare",
            power=regions.power,
            topics=regions.topics,
            homes=[placement.site_of(name_of(topic)) for topic in range(regions.topics)],
            sites=at,
            links=[
                (number, site, through[from_region(region, site)[0]])
                for number, region in enumerate(sorted(line))
                for site in line
            ],
            streams=streams,
        )
        yield SiteLine(sites, links, load, opened["origin"])


@contextmanager
def _running(sites: Sequence[SiteProcess]) -> Iterator[None]:
    """Started and stopped together."""

    async def all_of(does: Callable[[SiteProcess], Coroutine[Any, Any, object]]) -> None:
        await asyncio.gather(*map(does, sites))

    try:
        run(all_of(SiteProcess.start))
        yield
        run(all_of(SiteProcess.stop))
    finally:
        for site in sites:
            site.end()


def _ready(working: Worker) -> Worker:
    assert working.hear()["ready"]
    return working


def _file(
    placement: TopicPlacement,
    mode: str,
    name: str,
    at: Mapping[str, str],
    through: Mapping[str, str],
) -> str:
    """For one site: it reaches lower sites through their links."""
    line = placement.line
    names = ", ".join(f'"{site}"' for site in line)
    parts = [
        f'[ordering]\nline = [{names}]\nmode = "{mode}"\nkeep_s = {KEPT_S}\nlease_s = {LEASE_S}\n'
        f"heartbeat_s = {HEARTBEAT_S}\n"
    ]
    for place, site in enumerate(line):
        reached = at[site]
        if place < line.index(name):
            reached = through[between_sites(site, name)[0]]
        topics = ", ".join(f'"{topic}"' for topic in placement.topics_of(site))
        parts.append(
            f'[sites.{site}]\nlisten = "{at[site]}"\naddress = "{reached}"\ntopics = [{topics}]\n'
        )
    return "\n".join(parts)
