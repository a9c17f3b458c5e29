"""From what the machine tells of events to the subscriptions that they are for."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from motet.client.happenings import Arrived, Brought, Missed
from motet.client.progress import Progress
from motet.client.standing import Standing
from motet.client.subscription import Subscription
from motet.protocol.publication import Publication

log = logging.getLogger("motet.client")


class Arrivals:
    def __init__(self, entries: Mapping[int, Standing], progress: Progress) -> None:
        self.dropped_by_broker = 0
        self.lost_events = 0
        """How often events were reported lost: nobody can say how many they were."""
        self._entries = entries
        self._progress = progress
        self._early: list[Missed] = []
        """Losses from before the application has begun to read: it may subscribe yet."""

    def arrived(self, news: Arrived) -> None:
        entries = self._entries
        for handles, publication in news.batch:
            for handle in handles:
                entry = entries.get(handle)
                if isinstance(entry, Subscription):
                    entry.arrive(publication)
        if news.dropped:
            log.warning("the broker dropped %d events that we did not read", news.dropped)
            self.dropped_by_broker += news.dropped

    def brought(self, news: Brought) -> None:
        if news.each:
            for handle, (ticks, batch) in _sorted(news).items():
                self._bring(handle, news.pubend, ticks, batch)
        else:
            for handle in news.every:
                self._bring(handle, news.pubend, news.ticks, news.batch)
        # Events for a subscription that is over are done with as they come.
        self._progress.brought(len(news.ticks))

    def _bring(self, handle: int, pubend: str, ticks: list[int], batch: list[Publication]) -> None:
        entry = self._entries.get(handle)
        if isinstance(entry, Subscription):
            entry.bring(pubend, ticks, batch)
            self._progress.busy(entry)

    def missed(self, news: Missed) -> None:
        log.warning(
            "events of %s are lost, from tick %d to %d: nobody has them any more",
            news.pubend,
            news.first,
            news.last,
        )
        self.lost_events += 1
        if not self._progress.begun:
            self._early.append(news)
        for entry in self._entries.values():
            if isinstance(entry, Subscription):
                entry.miss(news.pubend, news.first, news.last)
                self._progress.busy(entry)
        if not self._progress.armed:
            self._progress.arm()

    def hear(self, entry: Standing) -> None:
        """Something new is in force: tell it what was lost before."""
        if self._progress.begun:
            self._early.clear()
        elif isinstance(entry, Subscription):
            for news in self._early:
                entry.miss(news.pubend, news.first, news.last)
                self._progress.busy(entry)


def _sorted(news: Brought) -> dict[int, tuple[list[int], list[Publication]]]:
    """By handle: its part of a batch of which not all is for everybody."""
    parts: dict[int, tuple[list[int], list[Publication]]] = {}
    for tick, publication, handles in zip(news.ticks, news.batch, news.each, strict=True):
        for handle in handles:
            part = parts.get(handle)
            if part is None:
                part = parts[handle] = ([], [])
            part[0].append(tick)
            part[1].append(publication)
    return parts
