"""A client process of a run of the profile `ordering`, with a diary that survives its SIGKILL.

    python -m motet.chaos.member client --name C1 --while-stdin --json --data DIR OPTIONS

It publishes, reads one stream of all topics, and keeps changing another one. Lines on its standard
input: `calm` ends the acts, `quit` the process. SIGUSR1 asks it to kill itself between a number
and its publication, SIGUSR2 between a publication and its confirmation.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from motet.errors import MotetError
from motet.ordering.client import OrderedStream, OrderingClient, SentEvent, connect
from motet.ordering.contract import (
    PUBLISH,
    ClientEffects,
    Input,
    ServiceDone,
    SiteFrame,
    WantClose,
)
from motet.ordering.envelope import opened
from motet.ordering.events import Gap, Joined, LostEvents
from motet.ordering.machine import OrderingMachine
from motet.protocol.sequencing.messages import (
    Changed,
    ChangeRequest,
    NumberRequest,
    Numbers,
    OrderWelcome,
    TopicIds,
)
from motet.runtime.loop import run

PATIENCE_S: Final = 0.1
LIMIT_S: Final = 1.5
CHANGE_S: Final = 10.0
STATE_S: Final = 0.1
REPLIES: Final = 0.1
"""How many of the events that it gets are answered by an event."""
WINDOW: Final = 256
DIARY: Final = ".diary"
STATE: Final = ".state"


class Diary:
    """What the process does and gets, one JSON array in a line. A line is written before anything
    of it can be seen outside."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self.doom = ""
        """At which of `numbered` and `published` the process kills itself."""
        self.causes: dict[int, None] = {}

    def note(self, kind: str, *what: Any) -> None:
        self._lines.append(self._encode((kind, *what)))

    def write(self) -> None:
        if self._lines:
            os.write(self._file, b"".join(line + b"\n" for line in self._lines))
            self._lines.clear()

    def meet(self, doom: str) -> None:
        if self.doom == doom:
            os.kill(os.getpid(), signal.SIGKILL)


class DiaryMachine(OrderingMachine):
    """The machine of a client that notes what comes in and what goes out, one input at a time."""

    diary: Diary

    def steps(self, happened: Iterable[Input], now: float) -> ClientEffects:
        whole = ClientEffects()
        for each in happened:
            self._came(each, now)
            self._add(whole, super().steps((each,), now), now)
        self._add(whole, super().steps((), now), now)
        self.diary.write()
        return whole

    def _add(self, whole: ClientEffects, part: ClientEffects, now: float) -> None:
        self._went(part, now)
        for name in ("sends", "calls", "events", "receipts", "told", "dials"):
            getattr(whole, name).extend(getattr(part, name))
        whole.wake_at = part.wake_at

    def _came(self, happened: Input, now: float) -> None:
        note, instance = self.diary.note, self.instance
        if isinstance(happened, WantClose):
            note("closed", happened.stream)
        elif isinstance(happened, ServiceDone) and happened.ticket in self.publisher._calls:
            self.diary.meet("published")
        elif isinstance(happened, SiteFrame):
            site, frame = happened
            if isinstance(frame, OrderWelcome):
                note("welcome", instance, frame.site, frame.answered, self.mode or frame.mode)
            elif isinstance(frame, TopicIds):
                note("ids", frame.ids)
            elif isinstance(frame, Numbers):
                stamps = [each and (each.topic, each.number, each.entries) for each in frame.stamps]
                note("numbers", now, instance, site, frame.first, stamps)
            elif isinstance(frame, Changed) and not frame.error:
                note("changed", now, frame.stream, frame.number)

    def _went(self, out: ClientEffects, now: float) -> None:
        note = self.diary.note
        for site, frame in out.sends:
            if isinstance(frame, NumberRequest):
                note("request", now, self.instance, site, frame.first, len(frame.topics))
            elif isinstance(frame, ChangeRequest):
                note("change", now, frame.stream, frame.number, frame.topics)
        for call in out.calls:
            if call.kind == PUBLISH:
                self.diary.meet("numbered")
                for stamp, payload in opened(call.body) or ():
                    note("sent", stamp.topic, stamp.number, int(payload))
        for news in out.told:
            if isinstance(news, Joined):
                note("joined", news.stream, news.id, news.cut)
            elif isinstance(news, LostEvents):
                note("lost", news.stream, news.topic, news.numbers)
            elif isinstance(news, Gap):
                note("gap", news.stream, news.reason)
        for key, event in out.events:
            made = int(event.payload)
            note("given", now, key, event.topic, event.number, made, event.late)
            self.diary.causes[made] = None


class DiaryClient:
    def __init__(
        self,
        client: OrderingClient,
        diary: Diary,
        options: argparse.Namespace,
        calm: asyncio.Event,
        over: asyncio.Event,
    ) -> None:
        self._client = client
        self.calm = calm
        self.over = over
        self._published: dict[str, int] = {}
        self._diary = diary
        self._random = Random(options.seed)
        self._topics: list[str] = options.topics.split(",")
        self._rate: float = options.rate
        self._changes: float = options.changes
        self._next = options.first
        self._state = Path(options.data).with_suffix(STATE)
        self._open = 0
        """Publications without an outcome."""
        self._changing = False
        self._steady: OrderedStream | None = None
        self._acts: list[asyncio.Task[None]] = []
        self._settling: set[asyncio.Task[None]] = set()

    async def live(self) -> None:
        acts = (self._publish(), self._read(), self._change(), self._tell())
        self._acts = [asyncio.create_task(act) for act in acts]
        await self.over.wait()

    # ── acts ─────────────────────────────────────────────────────────────────────────────

    def _send(self) -> None:
        if self._client.unconfirmed >= WINDOW or self.calm.is_set():
            return
        event, topic = self._next, self._random.choice(self._topics)
        self._next += 1
        self._diary.note("asked", event, topic, tuple(self._diary.causes))
        self._diary.write()
        self._diary.causes = {event: None}
        self._open += 1
        sent = self._client.send_nowait(topic, b"%d" % event)
        settling = asyncio.create_task(self._settle(event, sent))
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)

    async def _settle(self, event: int, sent: SentEvent) -> None:
        try:
            receipt = await sent
        except MotetError as problem:
            self._diary.note("outcome", event, type(problem).__name__, 0)
        else:
            self._diary.note("outcome", event, "", receipt.number)
            last = self._published.get(receipt.topic, 0)
            self._published[receipt.topic] = max(last, receipt.number)
        self._open -= 1
        self._diary.write()

    async def _publish(self) -> None:
        while not self.calm.is_set():
            await asyncio.sleep(self._random.expovariate(self._rate))
            self._send()

    async def _read(self) -> None:
        while self._steady is None:
            with suppress(MotetError):
                self._steady = await self._client.subscribe(*self._topics, timeout=CHANGE_S)
        self._diary.note("steady", self._steady._key)
        while True:
            with suppress(MotetError):
                await self._steady.get()
                if self._random.random() < REPLIES:
                    self._send()

    async def _change(self) -> None:
        """A stream that joins, drops and ends all the time."""
        stream: OrderedStream | None = None
        while not self.calm.is_set():
            await asyncio.sleep(self._random.expovariate(self._changes))
            self._changing = True
            with suppress(MotetError):
                stream = await self._changed(stream)
            self._changing = False
            while stream is not None and stream.get_nowait() is not None:
                pass
        self._changing = True
        while stream is not None:
            with suppress(MotetError):
                await stream.close()
                break
        self._changing = False

    async def _changed(self, stream: OrderedStream | None) -> OrderedStream | None:
        random = self._random
        if stream is None or stream.error is not None:
            some = random.sample(self._topics, random.randint(1, min(2, len(self._topics))))
            return await self._client.subscribe(*some, timeout=CHANGE_S)
        others = [topic for topic in self._topics if topic not in stream.topics]
        choice = random.random()
        if choice < 0.1:
            await stream.close()
            return None
        if others and (choice < 0.6 or len(stream.topics) == 1):
            await stream.add(random.choice(others), timeout=CHANGE_S)
        elif len(stream.topics) > 1:
            await stream.drop(random.choice(stream.topics), timeout=CHANGE_S)
        return stream

    # ── state ────────────────────────────────────────────────────────────────────────────

    async def _tell(self) -> None:
        """For who waits until everything is at rest."""
        encode = msgspec.json.Encoder().encode
        beside = self._state.with_suffix(".new")
        while True:
            await asyncio.sleep(STATE_S)
            steady = self._steady
            waiting = [] if steady is None else [each.topic for each in steady.waiting]
            state = {
                "calm": self.calm.is_set(),
                "open": self._open,
                "changing": self._changing,
                "clocks": dict(steady.clocks) if steady is not None else {},
                "waiting": waiting,
                "published": self._published,
            }
            beside.write_bytes(encode(state))
            beside.replace(self._state)


def _listen(flags: dict[str, asyncio.Event], loop: asyncio.AbstractEventLoop) -> None:
    """Runs in a thread. The end of the input is the end of who has started us."""
    for line in sys.stdin:
        flag = flags.get(line.strip())
        if flag is not None:
            loop.call_soon_threadsafe(flag.set)
    os._exit(0)


def _doomed(diary: Diary, doom: str) -> None:
    diary.doom = doom


async def _work(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    diary = Diary(Path(options.data).with_suffix(DIARY))
    loop.add_signal_handler(signal.SIGUSR1, _doomed, diary, "numbered")
    loop.add_signal_handler(signal.SIGUSR2, _doomed, diary, "published")
    DiaryMachine.diary = diary
    OrderingClient.machine_type = DiaryMachine
    flags = {"calm": asyncio.Event(), "quit": asyncio.Event()}
    threading.Thread(target=_listen, args=(flags, loop), daemon=True).start()
    client: OrderingClient | None = None
    while client is None:
        with suppress(MotetError):
            client = await connect(
                options.service,
                sequencer=options.sequencer,
                client_id=options.name,
                patience=PATIENCE_S,
                limit=LIMIT_S,
            )
    await DiaryClient(client, diary, options, flags["calm"], flags["quit"]).live()
    os._exit(0)  # without a goodbye: its streams are judged as they stand


def main(arguments: Sequence[str]) -> None:
    taken = argparse.ArgumentParser()
    taken.add_argument("command")
    for name in ("--name", "--data", "--service", "--sequencer", "--topics"):
        taken.add_argument(name, required=True)
    for name in ("--while-stdin", "--json"):
        taken.add_argument(name, action="store_true")
    for name in ("--seed", "--first"):
        taken.add_argument(name, type=int, required=True)
    for name in ("--rate", "--changes"):
        taken.add_argument(name, type=float, required=True)
    run(_work(taken.parse_args(arguments)))


if __name__ == "__main__":
    main(sys.argv[1:])
