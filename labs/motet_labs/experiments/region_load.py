"""The clients of all regions, multiplexed: one connection from each region to each site.

Publishers ask for numbers at a fixed rate, in pulses, whether earlier requests are answered or not;
the latency of a request counts from the moment at which its pulse is due, so a load generator that
is late shows as latency. Answers are read, and not used.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any, Final

import msgspec

from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.sequencing.messages import (
    MAX_UNSETTLED,
    Changed,
    ChangeRequest,
    Confirm,
    NumberRequest,
    Numbers,
    OrderHello,
    OrderWelcome,
    TopicIds,
    TopicQuery,
)
from motet.runtime.addresses import transport_for
from motet.runtime.codec import decode, encode
from motet.runtime.transport import Connection
from motet_labs.bench.sequencers import BEAT, SitePeer
from motet_labs.experiments.regions import RegionPublication, Regions, name_of
from motet_labs.processes import serve, tell

PULSE_S: Final = 0.005
SOON_S: Final = 0.5
"""Until the first pulse."""
LAST_S: Final = 20.0
"""The longest wait for the last answers."""
STREAM_CHUNK: Final = 100
"""Changes that are under way at one site, if streams have few topics."""
MOST_OPEN: Final = MAX_UNSETTLED - 2048
"""Requests of one connection: a site ends it if more are not confirmed."""
PAIRS_AHEAD: Final = 40_000
"""Pairs of topics in changes that are under way."""

_parts: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_TAG: Final = msgspec.msgpack.encode(Numbers.__struct_config__.tag)


class RequestAccount:
    """Requests of one instance at one site: when they were due, and how long they took."""

    def __init__(self) -> None:
        self.due: list[float] = []
        """Of request 1, 2, …"""
        self.answered = 0
        """All up to this one are."""
        self._ahead: set[int] = set()
        self.took: list[tuple[float, float]] = []
        """When a request was due, and how long it took; since `forget`."""
        self._given = 0

    def request(self, at: float, topics: Sequence[int]) -> NumberRequest:
        first = len(self.due) + 1
        self.due.extend([at] * len(topics))
        return NumberRequest(first, tuple(topics), self.answered)

    def answer(self, first: int, count: int, now: float) -> None:
        due, took = self.due, self.took
        self._given += count
        for at in due[first - 1 : first - 1 + count]:
            took.append((at, now - at))
        if first == self.answered + 1:
            self.answered += count
        else:
            self._ahead.update(range(first, first + count))
        while self.answered + 1 in self._ahead:
            self.answered += 1
            self._ahead.discard(self.answered)

    @property
    def open(self) -> int:
        """Requests that were never answered."""
        return len(self.due) - self._given

    @property
    def is_full(self) -> bool:
        """Too many are not confirmed."""
        return len(self.due) - self.answered > MOST_OPEN

    def forget(self) -> None:
        """Begin a new list of times."""
        self.took = []


class RegionPeer:
    """A connection with timestamps on their way."""

    def __init__(self, connection: Connection) -> None:
        self.account = RequestAccount()
        self._connection = connection
        self.welcomed = asyncio.Event()
        self._ended = ""

    def frames(self, bodies: Sequence[bytes]) -> None:
        now = time.monotonic()
        for body in bodies:
            if body == BEAT:
                continue
            parts = _parts.decode(body)
            if bytes(parts[0]) == _TAG:
                first = msgspec.msgpack.decode(parts[1])
                self.account.answer(first, len(_parts.decode(parts[2])), now)
            elif isinstance(decode(body), OrderWelcome):
                self.welcomed.set()

    def closed(self, reason: str) -> None:
        self._ended = reason or "closed"
        self.welcomed.set()

    def writable(self) -> None: ...

    def send(self, frame: Any) -> None:
        assert not self._ended, f"a site has ended the connection: {self._ended}"
        self._connection.send((encode(frame),))

    def beat(self) -> None:
        self._connection.send((BEAT,))

    def close(self) -> None:
        self._connection.abort()


class RegionLoad:
    """Worker."""

    def __init__(self) -> None:
        self._peers: dict[tuple[int, str], RegionPeer] = {}
        self._ids: dict[int, int] = {}
        """By topic: its id at its site."""
        self._homes: list[str] = []
        self._regions: Regions | None = None
        self._beating: asyncio.Task[None] | None = None

    async def prepare(
        self,
        power: float,
        topics: int,
        homes: Sequence[str],
        sites: Mapping[str, str],
        links: Sequence[tuple[int, str, str]],
        streams: Sequence[Sequence[int]],
    ) -> dict[str, float]:
        """Open the streams at the sites themselves, and then connect through the links: region,
        site and address of each."""
        self._regions = Regions(power, topics, len(sites))
        self._homes = list(homes)
        direct = {}
        for site, address in sites.items():
            direct[site] = await _dialled(address, f"subscribers of {site}")
        await self._name_topics(direct)
        began = time.monotonic()
        await asyncio.gather(
            *(
                self._join(direct[site], f"{site}.", streams[region :: len(sites)])
                for region, site in enumerate(sorted(sites))
            )
        )
        took_s = time.monotonic() - began
        for peer in direct.values():
            peer.close()
        for region, site, address in links:
            self._peers[region, site] = await _connected(address, f"publishers of {region}")
        for each in self._peers.values():
            await each.welcomed.wait()
        self._beating = asyncio.get_running_loop().create_task(self._beat())
        return {"joined_s": took_s}

    async def _name_topics(self, direct: Mapping[str, SitePeer]) -> None:
        by_site: dict[str, list[int]] = defaultdict(list)
        for topic, site in enumerate(self._homes):
            by_site[site].append(topic)
        for site, some in by_site.items():
            direct[site].say(TopicQuery(tuple(map(name_of, some))))
            ids = (await direct[site].expect(TopicIds)).ids
            self._ids |= {topic: ids[name_of(topic)] for topic in some}

    async def _join(self, peer: SitePeer, prefix: str, streams: Sequence[Sequence[int]]) -> None:
        start = 0
        while start < len(streams):
            ahead = max(1, min(STREAM_CHUNK, PAIRS_AHEAD // len(streams[start]) ** 2))
            some = streams[start : start + ahead]
            for number, topics in enumerate(some, start):
                ids = tuple(self._ids[topic] for topic in topics)
                peer.say(ChangeRequest(f"{prefix}{number}", 1, ids))
            for _ in some:
                changed = await peer.expect(Changed)
                assert not changed.error, changed
            start += ahead

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for peer in self._peers.values():
                peer.beat()

    # ── load ─────────────────────────────────────────────────────────────────────────────

    async def run(
        self, per_s: float, warm_s: float, seconds: float, seed: int, pulse_s: float = PULSE_S
    ) -> dict[str, Any]:
        """Answers count from the end of the warming up on."""
        assert self._regions is not None
        pulses = pulsed(
            self._regions.publications(per_s, warm_s + seconds, pulse_s, seed),
            self._homes,
            self._ids,
        )
        accounts = [peer.account for peer in self._peers.values()]
        for account in accounts:
            account.forget()
        began = time.monotonic() + SOON_S
        late = []
        unsent = 0
        for at_s, rows in pulses:
            while (left_s := began + at_s - time.monotonic()) > 0:
                await asyncio.sleep(left_s)
            late.append(-left_s)
            for region, site, topics in rows:
                peer = self._peers[region, site]
                if peer.account.is_full:
                    unsent += len(topics)
                    continue
                peer.send(peer.account.request(began + at_s, topics))
        end = began + warm_s + seconds
        await self._answers(accounts, end)
        for peer in self._peers.values():
            if peer.account.answered:
                peer.send(Confirm(peer.account.answered))
        took = [each for account in accounts for each in account.took]
        told = latency_of(took, began + warm_s, end)
        told |= {"open": sum(account.open for account in accounts), "unsent": unsent}
        told |= {"late_ms": mean(late) * 1e3, "latest_ms": max(late) * 1e3, "began": began}
        return told

    async def _answers(self, accounts: Sequence[RequestAccount], end: float) -> None:
        """Wait for the last answers."""
        while any(each.open for each in accounts) and time.monotonic() < end + LAST_S:
            await asyncio.sleep(0.02)


def pulsed(
    publications: Iterable[RegionPublication], homes: Sequence[str], ids: Mapping[int, int]
) -> list[tuple[float, list[tuple[int, str, list[int]]]]]:
    """By pulse: region, site, and topics by their ids, for each connection that is used."""
    found: dict[float, dict[tuple[int, str], list[int]]] = {}
    for at_s, region, topic in publications:
        rows = found.setdefault(at_s, {})
        rows.setdefault((region, homes[topic]), []).append(ids[topic])
    return [
        (at_s, [(region, site, topics) for (region, site), topics in rows.items()])
        for at_s, rows in found.items()
    ]


def latency_of(took: Iterable[tuple[float, float]], since: float, until: float) -> dict[str, Any]:
    """Of requests that were due in this interval; answers per second within it."""
    rows = list(took)
    counted = sorted(took_s for at, took_s in rows if since <= at < until)
    answered = sum(since <= at + took_s < until for at, took_s in rows)
    if not counted:
        return {"events": 0, "mean_ms": 0.0, "p50_ms": 0.0, "p99_ms": 0.0, "per_s": 0.0}
    return {
        "events": len(counted),
        "mean_ms": mean(counted) * 1e3,
        "p50_ms": counted[len(counted) // 2] * 1e3,
        "p99_ms": counted[len(counted) * 99 // 100] * 1e3,
        "per_s": answered / (until - since),
    }


async def _dialled(address: str, client: str) -> SitePeer:
    made: list[SitePeer] = []

    def handler(connection: Connection) -> SitePeer:
        made.append(SitePeer(connection))
        return made[0]

    await transport_for(address).connect(address, handler)
    made[0].say(OrderHello(PROTOCOL_VERSION, client))
    await made[0].expect(OrderWelcome)
    return made[0]


async def _connected(address: str, client: str) -> RegionPeer:
    made: list[RegionPeer] = []

    def handler(connection: Connection) -> RegionPeer:
        made.append(RegionPeer(connection))
        return made[0]

    await transport_for(address).connect(address, handler)
    made[0].send(OrderHello(PROTOCOL_VERSION, client))
    return made[0]


async def region_load() -> None:
    tell({"ready": True})
    await serve(RegionLoad())
