"""A machine whose sites and service are played by hand."""

from __future__ import annotations

from typing import Any, TypeVar

from motet.ordering.contract import (
    ENTRY,
    ClientEffects,
    Input,
    Notified,
    ServiceDone,
    SiteClosed,
    SiteConnected,
    SiteFrame,
    Tick,
    WantPublish,
    WantStream,
)
from motet.ordering.envelope import opened, seal
from motet.ordering.events import OrderedEvent
from motet.ordering.machine import OrderingMachine, OrderingOptions
from motet.ordering.stream import StreamLimits
from motet.protocol.sequencing.messages import (
    CAUSAL,
    Changed,
    ChangeRequest,
    NumberRequest,
    Numbers,
    OrderWelcome,
    Timestamp,
    TopicIds,
    TopicQuery,
)

F = TypeVar("F")
LEASE_S = 10.0
KEEP_S = 60.0


class Hand:
    """Topics `a.*` live at site a, and so on. `ids` are given in the order of the questions."""

    def __init__(self, *sites: str, limits: StreamLimits | None = None, **options: Any) -> None:
        self.sites = sites or ("a", "b")
        self.options = OrderingOptions(limits=limits, **options)
        self.machine = OrderingMachine("m", self.options)
        self.now = 100.0
        self.ids: dict[str, int] = {}
        self.answered = dict.fromkeys(self.sites, 0)
        self.out = ClientEffects()
        """Everything since the last `take`."""

    # ── inputs ───────────────────────────────────────────────────────────────────────────

    def do(self, *inputs: Input) -> ClientEffects:
        out = self.machine.steps(inputs, self.now)
        for name in ("sends", "calls", "events", "receipts", "told", "dials"):
            getattr(self.out, name).extend(getattr(out, name))
        self.out.wake_at = out.wake_at
        self.machine.validate()
        return out

    def frame(self, site: str, frame: Any) -> ClientEffects:
        return self.do(SiteFrame(site, frame))

    def after(self, seconds: float) -> ClientEffects:
        """Let time pass, with all ticks that are due."""
        until = self.now + seconds
        while self.out.wake_at <= until:
            self.now = max(self.now, self.out.wake_at)
            self.do(Tick())
        self.now = until
        return self.do(Tick())

    def welcome(self, site: str, name: str | None = None, answered: int = 0) -> None:
        self.do(SiteConnected(site if name is None else name))
        placement = tuple((f"{each}.*", each) for each in self.sites)
        line = tuple((each, f"motet://{each}") for each in self.sites)
        welcome = OrderWelcome(
            site, line, placement, self.sites[0], CAUSAL, LEASE_S, KEEP_S, 1.0, answered
        )
        self.frame(site if name is None else name, welcome)

    def connect(self) -> Hand:
        self.welcome(self.sites[0], ENTRY)
        for site in self.sites[1:]:
            self.welcome(site)
        self.take()
        return self

    def reconnect(self, site: str, answered: int = 0) -> None:
        self.do(SiteClosed(site))
        self.take()
        self.welcome(site, answered=answered)

    # ── what it has said ─────────────────────────────────────────────────────────────────

    def take(self) -> ClientEffects:
        out, self.out = self.out, ClientEffects(wake_at=self.out.wake_at)
        return out

    def said(self, kind: type[F], site: str = "") -> list[F]:
        """Frames of a kind since the last `take`."""
        return [
            frame
            for there, frame in self.out.sends
            if isinstance(frame, kind) and site in ("", there)
        ]

    def last(self, kind: type[F], site: str = "") -> F:
        return self.said(kind, site)[-1]

    def given(self, stream: int = 1) -> list[str]:
        """What the stream has delivered since the last `take`; late ones have a mark."""
        return [_shown(event) for key, event in self.out.events if key == stream]

    # ── topics ───────────────────────────────────────────────────────────────────────────

    def id_of(self, name: str) -> int:
        if name not in self.ids:
            site = self.sites.index(name.partition(".")[0])
            taken = sum(each.startswith(f"{self.sites[site]}.") for each in self.ids)
            self.ids[name] = site + taken * len(self.sites)
        return self.ids[name]

    def answer_queries(self) -> None:
        sends, self.out.sends = self.out.sends, []
        for site, frame in sends:
            if isinstance(frame, TopicQuery):
                self.frame(site, TopicIds({name: self.id_of(name) for name in frame.names}))
            else:
                self.out.sends.append((site, frame))

    def answer_calls(self, error: str = "") -> None:
        calls, self.out.calls = self.out.calls, []
        for call in calls:
            self.do(ServiceDone(call.ticket, error))

    def answer_change(self, **cut: int) -> None:
        """Keywords are names of topics with `_` for the dot; others are at 0."""
        named = {self.id_of(name.replace("_", ".")): number for name, number in cut.items()}
        site, change = next(
            (site, frame) for site, frame in self.out.sends if isinstance(frame, ChangeRequest)
        )
        self.out.sends.remove((site, change))
        full = {topic: named.get(topic, 0) for topic in change.topics}
        self.frame(site, Changed(change.stream, change.number, full))

    def stream(self, *topics: str, key: int = 1, **cut: int) -> str:
        """A stream that is open; returns its id."""
        self.do(WantStream(key, topics, 900 + key))
        self.answer_queries()
        self.answer_calls()
        self.answer_change(**cut)
        self.take()
        return self.machine.streams[key].id

    # ── events ───────────────────────────────────────────────────────────────────────────

    def stamp(
        self, name: str, number: int, gone: tuple[str, ...] = (), **entries: int
    ) -> Timestamp:
        flat = [
            item
            for other, at in entries.items()
            for item in (self.id_of(other.replace("_", ".")), at)
        ]
        return Timestamp(self.id_of(name), number, tuple(flat), gone)

    def arrive(self, name: str, number: int, gone: tuple[str, ...] = (), **entries: int) -> None:
        stamp = self.stamp(name, number, gone, **entries)
        self.do(Notified(name, seal([stamp], [f"{name}#{number}".encode()])))

    def publish(self, name: str, *tickets: int) -> None:
        self.do(*(WantPublish(ticket, name, f"p{ticket}".encode()) for ticket in tickets))
        self.answer_queries()

    def number(self, site: str, first: int | None = None, at: int = 1) -> NumberRequest:
        """Answer the last request with numbers from `at` on."""
        request = self.last(NumberRequest, site)
        stamps = tuple(Timestamp(topic, number) for number, topic in enumerate(request.topics, at))
        self.frame(site, Numbers(request.first if first is None else first, stamps))
        return request

    def published(self) -> list[tuple[str, list[tuple[int, bytes]]]]:
        """Calls of the service that publish, by subject: numbers and payloads."""
        return [
            (call.topic, [(stamp.number, payload) for stamp, payload in opened(call.body) or ()])
            for call in self.out.calls
            if call.kind == "publish"
        ]


def _shown(event: OrderedEvent) -> str:
    number = "-" if event.number is None else event.number
    return f"{event.topic}#{number}{' late' if event.late else ''}"
