"""Clients that change their minds: subscribe and unsubscribe, as often as a broker takes it.

    python -m motet.bench.churn URL PID CLIENTS SECONDS

Every client keeps a window of requests under way and a number of subscriptions in force; each new
one replaces its oldest. Frames are put together from encoded parts and answers are only counted,
so that the clients together cost far less than the broker that they load. Prints one JSON line:
operations per second, and the broker's CPU time for each.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterable, Sequence

from motet.bench import sample
from motet.bench.stand import cpu_s
from motet.errors import UnavailableError
from motet.protocol.frames import PROTOCOL_VERSION, Beat
from motet.protocol.session.messages import (
    ClientHello,
    Done,
    SubscribeRequest,
    UnsubscribeRequest,
    Welcome,
)
from motet.runtime.addresses import transport_for
from motet.runtime.codec import decode, encode
from motet.runtime.loop import run, settle_memory
from motet.runtime.transport import Connection

WINDOW = 16
"""Requests of one client that wait for their answers."""
IN_FORCE = 64
"""Subscriptions that each client keeps."""
FILTERS = 16_384
BEAT_S = 1.0
PATIENCE_S = 30.0

_MARK = 2**31
"""A sequence that takes five bytes, to find the place where others of that size belong."""
_DONE_START = encode(Done(_MARK))[:-5]


class Parts:
    """Encoded requests with a gap for their numbers; all numbers take five bytes."""

    def __init__(self) -> None:
        mark = _five_bytes(_MARK)
        wanted = sample.subscriptions(FILTERS)
        framed = [encode(SubscribeRequest(_MARK, each)) for each in wanted]
        self.head = framed[0].partition(mark)[0]
        self.tails = [body.partition(mark)[2] for body in framed]
        removal = encode(UnsubscribeRequest(_MARK, _MARK))
        self.removal, self.between, self.removal_tail = removal.split(mark)

    def subscribe(self, sequence: int, choice: int) -> bytes:
        return self.head + _five_bytes(sequence) + self.tails[choice % FILTERS]

    def unsubscribe(self, sequence: int, target: int) -> bytes:
        numbers = _five_bytes(sequence) + self.between + _five_bytes(target)
        return self.removal + numbers + self.removal_tail


def _five_bytes(number: int) -> bytes:
    """An unsigned integer of msgpack in its longest 32-bit form, whatever its size."""
    return b"\xce" + number.to_bytes(4)


class Client:
    """One session. `answered` counts what took effect; nothing else may come back."""

    def __init__(self, connection: Connection, place: int, parts: Parts) -> None:
        self.connection = connection
        self.answered = 0
        self.requested = 0
        self.going = False
        self.welcome = asyncio.Event()
        self.quiet = asyncio.Event()
        self.trouble = ""
        self._place = place * FILTERS // 7
        self._parts = parts
        connection.send([encode(ClientHello(PROTOCOL_VERSION, f"bench-churn-{place}"))])

    def start(self) -> None:
        self.going = True
        self.quiet.clear()
        self._fill()

    def stop(self) -> None:
        self.going = False
        self._settle()

    def frames(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            if body.startswith(_DONE_START):
                self.answered += 1
            else:
                self._hear(body)
        if self.going:
            self._fill()
        else:
            self._settle()

    def _hear(self, body: bytes) -> None:
        frame = decode(body)
        if isinstance(frame, Done):
            self.answered += 1
        elif isinstance(frame, Welcome):
            self.welcome.set()
        elif not isinstance(frame, Beat):
            self._fail(f"the broker said {frame}")

    def _fill(self) -> None:
        """Odd requests subscribe; even ones take away what was asked for long ago."""
        room = WINDOW - (self.requested - self.answered)
        if room <= 0:
            return
        parts, bodies = self._parts, []
        for sequence in range(self.requested + 1, self.requested + room + 1):
            target = sequence - 2 * IN_FORCE + 1
            if sequence % 2 or target <= 0:
                bodies.append(parts.subscribe(sequence, self._place + sequence))
            else:
                bodies.append(parts.unsubscribe(sequence, target))
        self.requested += room
        self.connection.send(bodies)

    def _settle(self) -> None:
        if self.answered == self.requested:
            self.quiet.set()

    def _fail(self, trouble: str) -> None:
        self.trouble = trouble
        self.welcome.set()
        self.quiet.set()

    def closed(self, reason: str) -> None:
        self._fail(f"the broker closed: {reason}")

    def writable(self) -> None:
        pass


async def measure(url: str, pid: int, clients: int, seconds: float) -> dict[str, float]:
    parts = Parts()
    crowd = [await _connected(url, place, parts) for place in range(clients)]
    beating = asyncio.create_task(_beat(crowd))
    settle_memory()
    await _churn(crowd, seconds / 5)
    broker, own = cpu_s(pid), time.process_time()
    operations, began = _answered(crowd), time.perf_counter()
    await _churn(crowd, seconds)
    took_s, operations = time.perf_counter() - began, _answered(crowd) - operations
    broker, own = cpu_s(pid) - broker, time.process_time() - own
    beating.cancel()
    return {
        "operations": operations,
        "operations_per_s": operations / took_s,
        "cpu_us_per_operation": broker / operations * 1e6,
        "own_cpu_us_per_operation": own / operations * 1e6,
        "answered": _answered(crowd),
    }


async def _churn(crowd: Sequence[Client], seconds: float) -> None:
    """Keep all windows full for so long, then wait for the last answers."""
    for client in crowd:
        client.start()
    await asyncio.sleep(seconds)
    for client in crowd:
        client.stop()
    await _all(client.quiet for client in crowd)
    for client in crowd:
        if client.trouble:
            raise UnavailableError(client.trouble)


def _answered(crowd: Sequence[Client]) -> int:
    return sum(client.answered for client in crowd)


async def _connected(url: str, place: int, parts: Parts) -> Client:
    made: list[Client] = []

    def accept(connection: Connection) -> Client:
        made.append(Client(connection, place, parts))
        return made[-1]

    await transport_for(url).connect(url, accept)
    await _all([made[0].welcome])
    return made[0]


async def _all(events: Iterable[asyncio.Event]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        for event in events:
            await event.wait()


async def _beat(crowd: Sequence[Client]) -> None:
    beat = [encode(Beat())]
    while True:
        await asyncio.sleep(BEAT_S)
        for client in crowd:
            client.connection.send(beat)


def main(arguments: Sequence[str]) -> None:
    url, pid, clients, seconds = arguments
    print(json.dumps(run(measure(url, int(pid), int(clients), float(seconds)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
