"""The advertisements and subscriptions of a client, and the delivery of events to them.

In a durable session one may be in force already, because an earlier process of the client has
left it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from motet.client.checks import check_callable, checked, checked_name, length_sent
from motet.client.session.state import (
    INVERSE,
    Arrived,
    Concluded,
    Missed,
    Operation,
    Resolved,
    StreamBatch,
)
from motet.client.subscription import (
    Advertisement,
    Callback,
    OnLoss,
    Progress,
    Registration,
    Subscription,
    finish,
)
from motet.errors import InTransaction, MisuseError, MotetError, NameTaken
from motet.model import Filter, as_filter
from motet.protocol.publication import Publication
from motet.protocol.session.messages import Tag

if TYPE_CHECKING:
    from motet.client.driver import SessionDriver

log = logging.getLogger("motet.client")


MAX_FILTER_BYTES = 1024 * 1024
"""Filters are limited when they are made; this keeps them far below a frame's limit."""


class Registrations:
    def __init__(self, driver: SessionDriver) -> None:
        self._driver = driver
        self.entries: dict[int, Registration] = {}
        """By handle: in force or requested."""
        self._touched: dict[str, list[Registration]] = {}
        """By open transaction: the registrations that begin or end in it."""
        self._leaving: dict[int, Registration] = {}
        """By the handle of the request that removes it."""

    async def advertise(
        self,
        filter: str | Filter,
        name: str | None,
        timeout_s: float,
        *,
        wait: bool = True,
        tag: Tag | None = None,
    ) -> Advertisement:
        entry = Advertisement(as_filter(filter), self.withdraw, checked_name(name))
        await self._put_in_force(entry, timeout_s, wait, None, tag)
        return entry

    async def subscribe(
        self,
        filter: str | Filter,
        name: str | None,
        timeout_s: float,
        *,
        wait: bool = True,
        since: Mapping[str, int] | None = None,
        tag: Tag | None = None,
        callback: Callback | None,
        buffer: int,
        on_loss: OnLoss,
        cursors: Mapping[str, int] | None = None,
    ) -> Subscription:
        if type(buffer) is not int or buffer < 1:
            raise MisuseError(f"a buffer holds at least one event, not {buffer!r}")
        check_callback(callback, on_loss)
        entry = Subscription(
            as_filter(filter),
            self.withdraw,
            checked_name(name),
            buffer=buffer,
            callback=callback,
            on_loss=on_loss,
            progress=self._driver.progress,
            cursors=cursors,
        )
        await self._put_in_force(entry, timeout_s, wait, since, tag)
        return entry

    async def _put_in_force(
        self,
        entry: Registration,
        timeout_s: float,
        wait: bool,
        since: Mapping[str, int] | None,
        tag: Tag | None,
    ) -> None:
        """Advertise or subscribe, in a transaction if there is a `tag`, and wait for the answer;
        raises if it failed. In a durable session it may be in force already."""
        driver, machine = self._driver, self._driver.machine
        driver.guard.check()
        try:
            async with driver.answers.slots:
                driver.check_open()
                _check_travels(entry.filter)
                driver.flush()
                waits, kind, wanted = True, entry.kind, entry.filter
                if tag is not None:
                    entry.handle = machine.parts.request(
                        tag, kind, wanted, timeout_s=timeout_s, name=entry.name
                    )
                    entry.begins_in = tag.tx
                    self._touched.setdefault(tag.tx, []).append(entry)
                    driver.arrivals.hear(entry)
                elif self._is_left(entry):
                    waits = machine.requests.await_answer(entry.handle)
                else:
                    name = entry.name if machine.durable else entry.chosen_name
                    entry.handle = machine.request(
                        kind, wanted, wait=wait, timeout_s=timeout_s, name=name, since=since
                    )
                    driver.arrivals.hear(entry)
                self.entries[entry.handle] = entry
                if waits:
                    await driver.answers.wait(entry.handle, kind, timeout_s)
        except BaseException:
            if self.entries.get(entry.handle) is entry:
                del self.entries[entry.handle]
            entry._end(None)
            raise

    def _is_left(self, entry: Registration) -> bool:
        """Claim the registration if an earlier process has left it; returns whether it has."""
        durable = self._driver.machine.durable
        left = self.find(entry.kind, entry.name) if durable else None
        if left is None:
            return False
        what = f"{entry.kind} {entry.name!r}"
        if left.claimed:
            text = f"{what}: this process already has one of this name; use another name"
            raise NameTaken(text)
        if left.filter != entry.filter:
            raise NameTaken(
                f"{what}: one of this name is in effect with the filter {left.filter}; cancel it "
                "by its name first, or use another name"
            )
        entry._inherit(left)
        if isinstance(entry, Subscription):
            self._driver.progress.busy(entry)
        return True

    def find(self, kind: str, name: str) -> Registration | None:
        """The registration of this name. One that an open transaction ends or begins may have the
        same name: it is returned only if there is no other."""
        found = [
            entry
            for entry in self.entries.values()
            if entry.kind == kind and entry.name == name and entry.active
        ]
        staying = [e for e in found if not e.ends_in]
        here = [e for e in staying if not e.begins_in]
        return next(iter(here or staying or found), None)

    def take_over(self) -> None:
        """Adopt the registrations of another process; they keep their events."""
        for operation in self._driver.machine.requests.in_force():
            if operation.handle not in self.entries:
                entry = self._made_for(operation, on_loss="raise")
                entry.claimed = False
                self.entries[entry.handle] = entry

    def _made_for(self, operation: Operation, on_loss: OnLoss = "count") -> Registration:
        assert operation.filter is not None
        what = (operation.filter, self.withdraw, operation.name)
        entry: Registration = Advertisement(*what)
        if operation.kind == "subscribe":
            entry = Subscription(*what, progress=self._driver.progress, on_loss=on_loss)
        entry.handle = operation.handle
        return entry

    async def withdraw(self, entry: Registration, wait: str, timeout: float) -> None:
        """Remove a registration, unless it was removed before or ended with the session."""
        everywhere, timeout_s = checked(wait, timeout)
        self._driver.guard.check()
        if entry.active:
            await self._take_back(entry, wait=everywhere, timeout_s=timeout_s)
            await finish((entry,))

    async def _take_back(self, entry: Registration, *, wait: bool, timeout_s: float) -> None:
        """A caller that is cancelled while it waits for its turn may try again."""
        driver = self._driver
        async with driver.answers.slots:
            if not entry.active:
                return  # another caller was faster, or the client has ended
            driver.flush()
            kind, target = INVERSE[entry.kind], entry.handle
            handle = driver.machine.request(kind, target=target, wait=wait, timeout_s=timeout_s)
            entry.leaving = True
            self._leaving[handle] = entry
            await driver.answers.wait(handle, kind, timeout_s)

    def resolved(self, news: Resolved) -> None:
        """A request is answered, whether or not a caller still waits. Only now is it known whether
        a removed registration has ended: our broker may hold it for a plan."""
        entry = self._leaving.pop(news.handle, None)
        if entry is not None:
            entry.leaving = False
            refused = news.failure is not None and news.failure.error == InTransaction.__name__
            if not refused:
                entry._end(None)
                self.entries.pop(entry.handle, None)

    def over(self, handle: int, error: MotetError | None) -> Registration | None:
        """A registration has ended; returns it, if it is known."""
        entry = self.entries.pop(handle, None)
        if entry is not None:
            entry._end(error)
        return entry

    def end_all(self, error: MotetError | None, *, put_back: bool = False) -> None:
        """The session has ended. With `put_back`, a later process gets the unread events."""
        for entry in list(self.entries.values()):
            if put_back and isinstance(entry, Subscription):
                entry._put_back()
            entry._end(error)

    def disown(self, error: MotetError) -> None:
        """This is a forked child."""
        for entry in self.entries.values():
            entry._disown(error)

    # ── in a transaction ─────────────────────────────────────────────────────────────────

    async def take_out(self, tag: Tag, entry: Registration, timeout_s: float) -> None:
        """Remove a registration when the transaction commits."""
        driver = self._driver
        driver.guard.check()
        async with driver.answers.slots:
            driver.check_open()
            driver.flush()
            kind = INVERSE[entry.kind]
            target = entry.handle
            handle = driver.machine.parts.request(tag, kind, target=target, timeout_s=timeout_s)
            entry.ends_in = tag.tx
            self._touched.setdefault(tag.tx, []).append(entry)
            try:
                await driver.answers.wait(handle, kind, timeout_s)
            except BaseException:
                entry.ends_in = ""
                raise

    def concluded(self, news: Concluded) -> list[Registration]:
        """A transaction is over: returns the registrations that a plan has begun here."""
        for each in self._touched.pop(news.tx, []):
            if each.begins_in == news.tx:
                each.begins_in = ""
            if each.ends_in == news.tx and not news.committed:
                each.ends_in = ""
        for handle in news.ended:
            ended = self.entries.get(handle)
            if ended is not None:
                ended.ends_in = news.tx
        began = [self._made_for(operation) for operation in news.began]
        for entry in began:
            self._driver.arrivals.hear(entry)
            self.entries[entry.handle] = entry
        return began


def check_callback(callback: object, on_loss: str) -> None:
    check_callable("a callback", callback)
    if on_loss not in ("count", "raise"):
        raise MisuseError(f"`on_loss` is 'count' or 'raise', not {on_loss!r}")
    if on_loss == "raise" and callback is not None:
        raise MisuseError(
            "`on_loss='raise'` needs iteration, but this subscription has a callback; iterate, or "
            "check `lost`"
        )


def _check_travels(wanted: Filter) -> None:
    length = length_sent(wanted, "this filter cannot be sent")
    if length > MAX_FILTER_BYTES:
        raise MisuseError(f"a filter of {length} bytes is above the limit of {MAX_FILTER_BYTES}")


class Arrivals:
    def __init__(self, entries: Mapping[int, Registration], progress: Progress) -> None:
        self.dropped_by_broker = 0
        self.lost_events = 0
        """How often events were reported lost; the number of events is unknown."""
        self._entries = entries
        self._progress = progress
        self._early: list[Missed] = []
        """Losses from before the application has started reading: it may still subscribe."""

    def arrived(self, news: Arrived) -> None:
        entries = self._entries
        for handles, publication in news.batch:
            for handle in handles:
                entry = entries.get(handle)
                if isinstance(entry, Subscription):
                    entry._arrive(publication)
        if news.dropped:
            log.warning("the broker dropped %d events that were not read in time", news.dropped)
            self.dropped_by_broker += news.dropped

    def brought(self, news: StreamBatch) -> None:
        if news.each:
            for handle, (ticks, batch) in _sorted(news).items():
                self._bring(handle, news.pubend, ticks, batch)
        else:
            for handle in news.every:
                self._bring(handle, news.pubend, news.ticks, news.batch)
        # Events for a subscription that has ended count as acknowledged on arrival.
        self._progress.brought(len(news.ticks))

    def _bring(self, handle: int, pubend: str, ticks: list[int], batch: list[Publication]) -> None:
        entry = self._entries.get(handle)
        if isinstance(entry, Subscription):
            entry._bring(pubend, ticks, batch)
            self._progress.busy(entry)

    def missed(self, news: Missed) -> None:
        log.warning(
            "events of %s are lost, from tick %d to %d: no log has them any longer",
            news.pubend,
            news.first,
            news.last,
        )
        self.lost_events += 1
        if not self._progress.begun:
            self._early.append(news)
        for entry in self._entries.values():
            if isinstance(entry, Subscription):
                entry._miss(news.pubend, news.first, news.last)
                self._progress.busy(entry)
        if not self._progress.armed:
            self._progress.arm()

    def hear(self, entry: Registration) -> None:
        """Report earlier losses to a new registration."""
        if self._progress.begun:
            self._early.clear()
        elif isinstance(entry, Subscription):
            for news in self._early:
                entry._miss(news.pubend, news.first, news.last)
                self._progress.busy(entry)


def _sorted(news: StreamBatch) -> dict[int, tuple[list[int], list[Publication]]]:
    """By handle: its part of a batch whose events are for different subscriptions."""
    parts: dict[int, tuple[list[int], list[Publication]]] = {}
    for tick, publication, handles in zip(news.ticks, news.batch, news.each, strict=True):
        for handle in handles:
            part = parts.get(handle)
            if part is None:
                part = parts[handle] = ([], [])
            part[0].append(tick)
            part[1].append(publication)
    return parts
