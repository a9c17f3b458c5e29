"""`memory://name`: a service within one process, for tests and examples."""

from __future__ import annotations

import asyncio
import random
from typing import ClassVar

from motet.errors import ClosedError, MisuseError
from motet.ordering.services.base import Interrupted, Notify, Service, Topics, Url

TOPICS = Topics("a service in memory", "", 1000)


class MemoryService(Service):
    """All services of one name in one process are the same one.

    `memory://name?delay=0.01&doubles=0.1&seed=7`: each message reaches each subscriber after a
    random time of at most `delay` seconds, so messages overtake each other; this share of them
    comes twice. Without options, a message comes in the next iteration of the loop, in sequence.
    """

    lossless = True
    most_header_bytes = 1 << 20
    _joined: ClassVar[dict[str, list[MemoryService]]] = {}

    def __init__(self, url: str) -> None:
        parsed = Url(url, options=("delay", "doubles", "seed"))
        self.name = f"memory://{parsed.host}"
        self._key = parsed.host
        self._delay_s = parsed.number("delay", 0.0)
        self._doubles = parsed.number("doubles", 0.0)
        if self._doubles > 1:
            raise MisuseError(f"option doubles of {url!r} is a share, 0 to 1")
        self._random = random.Random(int(parsed.number("seed", 0)))
        self._topics: set[str] = set()
        self._notify: Notify | None = None
        self._closed = False
        self._timers: set[asyncio.TimerHandle] = set()

    async def open(self, notify: Notify, interrupted: Interrupted) -> None:
        del interrupted  # nothing breaks here
        if self._notify is not None or self._closed:
            raise MisuseError(f"{self.name} was opened before; make another one")
        self._notify = notify
        self._joined.setdefault(self._key, []).append(self)

    async def close(self) -> None:
        self._closed = True
        if self._notify is None:
            return
        self._notify = None
        members = self._joined[self._key]
        members.remove(self)
        if not members:
            del self._joined[self._key]
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def subscribe(self, topic: str) -> None:
        self._check()
        TOPICS.check(topic)
        self._topics.add(topic)

    async def unsubscribe(self, topic: str) -> None:
        self._check()
        self._topics.discard(topic)

    async def publish(self, topic: str, body: bytes, header: str = "") -> None:
        self._check()
        TOPICS.check(topic)
        self.check_body(body, header)
        loop = asyncio.get_running_loop()
        for member in self._joined[self._key]:
            if topic not in member._topics:
                continue
            for _ in range(2 if self._random.random() < self._doubles else 1):
                if self._delay_s:
                    member._later(self._random.uniform(0, self._delay_s), topic, body, header)
                else:
                    loop.call_soon(member._give, topic, body, header)

    def _later(self, delay_s: float, topic: str, body: bytes, header: str) -> None:
        def give() -> None:
            self._timers.discard(timer)
            self._give(topic, body, header)

        timer = asyncio.get_running_loop().call_later(delay_s, give)
        self._timers.add(timer)

    def _give(self, topic: str, body: bytes, header: str) -> None:
        if self._notify is not None and topic in self._topics:
            self._notify(topic, body, header)

    def _check(self) -> None:
        if self._notify is None:
            raise ClosedError(f"{self.name} is {'closed' if self._closed else 'not open'}")
