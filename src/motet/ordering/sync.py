"""The client without `await`, for scripts and threads. An event loop in a thread of its own does
the work; any number of threads may use the client.

    with motet.ordering.connect_sync("nats://…", sequencer="motet://…") as client:
        with client.subscribe("orders", "prices") as stream:
            client.publish("orders", b"...")
            print(stream.get(timeout=1.0))
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from motet.client.checks import checked_wait
from motet.client.sync.facade import Facade, Forwarded, Host, LoopThread, blocking
from motet.errors import ClosedError, MotetError
from motet.ordering.client import CHANGE_S, OrderedStream, OrderingClient, SentEvent, connect
from motet.ordering.contract import MissingNumbers
from motet.ordering.events import Gap, LostEvents, OrderedEvent, OrderReceipt
from motet.ordering.services import Service
from motet.ordering.topics import Topic


class SyncSentEvent(Facade[SentEvent]):
    """An event that `send` has handed over."""

    settled = Forwarded[bool]()

    def wait(self) -> OrderReceipt:
        """Its receipt; raises as `publish` does."""

        async def receipt() -> OrderReceipt:
            found: OrderReceipt = await self._wrapped
            return found

        return self._run(receipt())


class SyncOrderedStream(Facade[OrderedStream]):
    """Iterate over it, or `get` one event at a time, from any thread."""

    add = blocking(OrderedStream.add)
    drop = blocking(OrderedStream.drop)
    close = blocking(OrderedStream.close)
    topics = Forwarded[tuple[str, ...]]()
    cut = Forwarded[Mapping[str, int]]()
    clocks = Forwarded[Mapping[str, int]](on_loop=True)
    waiting = Forwarded[list[MissingNumbers]](on_loop=True)
    error = Forwarded[MotetError | None]()
    id = Forwarded[str]()
    lost = Forwarded[int]()
    gaps = Forwarded[int]()
    forged = Forwarded[int](on_loop=True)
    losses = Forwarded[deque[LostEvents | Gap]](on_loop=True)
    buffered = Forwarded[int]()

    def __init__(self, stream: OrderedStream, host: Host) -> None:
        super().__init__(stream, host)
        self._arrival = threading.Condition()
        stream._bell = self._ring

    def _ring(self) -> None:
        with self._arrival:
            self._arrival.notify_all()

    def get(self, timeout: float | None = None) -> OrderedEvent:
        """The next event; `TimeoutError` if none comes in time, `ClosedError` after the end."""
        timeout = checked_wait(timeout)
        stream = self._wrapped
        deadline = inf if timeout is None else time.monotonic() + timeout
        with self._arrival:
            while True:
                error = stream.error  # read before the buffer: events come before the end
                event = self.get_nowait()
                if event is not None:
                    return event
                if error is not None:
                    raise error
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"no event within {timeout:g} s")
                self._arrival.wait(min(left_s, threading.TIMEOUT_MAX))

    def get_nowait(self) -> OrderedEvent | None:
        """None instead of waiting."""
        self._host.check_process()
        try:
            return self._wrapped._ready.popleft()
        except IndexError:
            return None

    def __iter__(self) -> Iterator[OrderedEvent]:
        return self.events()

    def events(self, timeout: float | None = None) -> Iterator[OrderedEvent]:
        """Iterate until the end, or until no event has come for `timeout` seconds."""
        while True:
            try:
                yield self.get(timeout)
            except (ClosedError, TimeoutError):
                return


class SyncOrderingClient(Facade[OrderingClient]):
    """Made by `connect_sync`. The verbs of `OrderingClient`, without `await`."""

    publish = blocking(OrderingClient.publish)
    flush = blocking(OrderingClient.flush)
    client_id = Forwarded[str]()
    closed = Forwarded[bool]()
    error = Forwarded[MotetError | None]()
    unconfirmed = Forwarded[int]()
    foreign_events = Forwarded[int]()
    forged_events = Forwarded[int]()
    line = Forwarded[Mapping[str, str]](on_loop=True)

    def __init__(self, client: OrderingClient, thread: LoopThread) -> None:
        super().__init__(client, thread.host)
        self._thread = thread
        thread.at_stop(client.close)

    def send(self, topic: str, payload: bytes, *, subject: str = "") -> SyncSentEvent:
        """Hand over an event; waits only while the window is full. `flush`, or `wait` for it."""
        sent = self._run(self._wrapped.send(topic, payload, subject=subject))
        return SyncSentEvent(sent, self._host)

    def subscribe(self, *topics: str | Topic, timeout: float = CHANGE_S) -> SyncOrderedStream:
        """One stream of these topics, and so one order."""

        async def opened() -> SyncOrderedStream:
            stream = await self._wrapped.subscribe(*topics, timeout=timeout)
            return SyncOrderedStream(stream, self._host)

        return self._run(opened())

    def close(self) -> None:
        """Confirm, end all streams, and disconnect. Idempotent."""
        self._thread.finish(self._wrapped.close)

    def __exit__(self, *_: Any) -> None:
        self.close()


def connect_sync(service: str | Service, *, sequencer: str, **options: Any) -> SyncOrderingClient:
    """As `connect`, with the same options, for threads."""

    async def opened() -> OrderingClient:
        return await connect(service, sequencer=sequencer, **options)

    client, thread = LoopThread.opened(opened())
    return SyncOrderingClient(client, thread)
