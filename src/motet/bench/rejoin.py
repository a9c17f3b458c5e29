"""What it costs when a neighbour joins anew: it was given up, or has lost its state.

Two cores, each with a client of its own, and nothing between them but the codec: every frame is
encoded and decoded, so that the time is what one process spends on both ends together. Network
and disk come on top, per frame of at most `CONTROL_CHUNK` messages.
"""

from __future__ import annotations

import time
from collections import deque

from motet.bench.figures import Figure
from motet.bench.workload import filters
from motet.broker.config import BrokerConfig
from motet.broker.core import BrokerCore
from motet.model.filters import EVERYTHING
from motet.protocol.contract import Dialled, Output, Received
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.messages import Control
from motet.protocol.session.messages import AdvertiseRequest, ClientHello, SubscribeRequest
from motet.runtime.codec import decode, encode

SHORT, LONG = 2_000, 20_000
SHARE = 0.01
"""Of all events, that one subscription wants."""
CLIENT, LINK = 1, 2


class _Pair:
    """A with its subscriptions, B with as many advertisements as there are to route them."""

    def __init__(self, subscriptions: int, advertisements: int) -> None:
        self._now = 0.0
        self.cores = {
            name: BrokerCore(BrokerConfig(name, (other,))) for name, other in ("AB", "BA")
        }
        self._under_way: deque[tuple[str, bytes]] = deque()
        self.control = self.frames = self.bytes = 0
        for name in self.cores:
            self._hear(name, CLIENT, ClientHello(PROTOCOL_VERSION, f"client-{name}"))
        for sequence, wanted in enumerate(filters(subscriptions, SHARE), 1):
            self._hear("A", CLIENT, SubscribeRequest(sequence, wanted, wait=False))
        for sequence in range(1, advertisements + 1):
            self._hear("B", CLIENT, AdvertiseRequest(sequence, EVERYTHING, wait=False))

    def join(self) -> float:
        """The seconds from the first hello until neither has anything left to say."""
        began = time.perf_counter()
        self._carry("A", self.cores["A"].step(Dialled(LINK, "B"), self._now))
        while self._under_way:
            name, body = self._under_way.popleft()
            self._hear(name, LINK, decode(body))
        return time.perf_counter() - began

    def _hear(self, name: str, connection: int, frame: Frame) -> None:
        self._carry(name, self.cores[name].step(Received(connection, frame), self._now))

    def _carry(self, name: str, out: Output) -> None:
        other = "B" if name == "A" else "A"
        for _, frame in out.send:
            body = encode(frame)
            self.frames += 1
            self.bytes += len(body)
            if isinstance(frame, Control):
                self.control += len(frame.messages)
            self._under_way.append((other, body))


def measure(short: bool) -> list[Figure]:
    """A neighbour joins a broker with many subscriptions, all of which it attracts."""
    count = SHORT if short else LONG
    pair = _Pair(count, advertisements=1)
    took_s = pair.join()
    arrived = len(pair.cores["B"].durable.routing.state.subscriptions) == count
    what = f"rejoin, {count:,} subscriptions"
    return [
        Figure(f"{what}, control messages", pair.control, "messages", counts=arrived),
        Figure(f"{what}, frames", pair.frames, "frames", counts=arrived),
        Figure(f"{what}, both ends together", took_s, "s", counts=arrived),
        Figure(f"{what}, size of all frames", pair.bytes / 1e6, "MB", counts=arrived),
    ]
