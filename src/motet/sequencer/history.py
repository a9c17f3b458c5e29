"""Records in a history what a site has told: topics, numbers, and whom it has forgotten."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

from motet.audit.recorder import Recording
from motet.protocol.contract import Output
from motet.protocol.sequencing.facts import InstancesForgotten, TopicsNamed
from motet.protocol.sequencing.messages import Numbers, Timestamp
from motet.sequencer.core import SiteCore


class SiteHistory:
    """Is told of the outputs of a site, and when what they depend on is durable: only then are they
    recorded."""

    def __init__(self, core: SiteCore, into: Recording) -> None:
        self._core = core
        self._into = into
        self._site: Final = core.config.name
        self._nth = 0
        self._waiting: deque[tuple[int, str, dict[str, Any]]] = deque()
        """Rows that are not durable yet, by the position of their facts in the journal."""
        config = core.config
        into.add(
            "order_sites",
            {
                "site": config.name,
                "line": list(config.sites),
                "mode": config.mode,
                "elsewhere": config.elsewhere or config.sites[0],
                "at": time.time(),
            },
        )
        for name, topic in core.site.ids.items():
            into.add("order_topics", {"site": self._site, "topic": name, "id": topic})

    def wrote(self, position: int, output: Output) -> None:
        """Facts were applied, and appended to the journal up to this position."""
        for fact in output.persist:
            if type(fact.body) is TopicsNamed:
                for name in fact.body.names:
                    topic = {"topic": name, "id": self._core.site.ids[name]}
                    self._wait(position, "order_topics", topic)
            elif type(fact.body) is InstancesForgotten:
                for client in fact.body.clients:
                    self._wait(position, "order_forgotten", {"client": client, "at": time.time()})
        for connection, frame in output.deliver:
            peer = self._core.peers.get(connection)
            if type(frame) is Numbers and peer is not None:
                self._told(position, peer.name, frame)

    def _told(self, position: int, client: str, frame: Numbers) -> None:
        now = time.time()
        for request, stamp in enumerate(frame.stamps, frame.first):
            if stamp is not None:
                self._nth += 1
                row = self._row(stamp)
                row |= {"client": client, "request": request, "nth": self._nth, "at": now}
                self._wait(position, "order_numbers", row)

    def _row(self, stamp: Timestamp) -> dict[str, Any]:
        name = self._core.site.names[stamp.topic]
        return {"topic": name, "number": stamp.number, "entries": list(stamp.entries)}

    def _wait(self, position: int, table: str, row: dict[str, Any]) -> None:
        self._waiting.append((position, table, {"site": self._site, **row}))

    def durable(self, position: int) -> None:
        """All facts up to this position are durable, also where a standby keeps them."""
        while self._waiting and self._waiting[0][0] <= position:
            _, table, row = self._waiting.popleft()
            self._into.add(table, row)

    def close(self) -> None:
        """The site stops. What is not durable was told to nobody."""
        self._into.close()
