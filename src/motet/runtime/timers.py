"""Alarms by key on the event loop: setting a key again replaces it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from motet.protocol.contract import CancelTimer, SetTimer
from motet.runtime.clock import Clock

SHORTEST_S = 0.001


class Timers:
    """`ring` is called with the key, never before its time on the given clock."""

    def __init__(self, clock: Clock, ring: Callable[[tuple[Hashable, ...]], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._handles: dict[tuple[Hashable, ...], asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._handles)

    def carry(self, wishes: list[SetTimer | CancelTimer]) -> None:
        if len(wishes) > 1:  # a transaction sets its own again and again: the last counts
            wishes = list({wish.key: wish for wish in wishes}.values())
        for wish in wishes:
            if type(wish) is SetTimer:
                self.set(wish.key, wish.at)
            else:
                self.cancel(wish.key)

    def set(self, key: tuple[Hashable, ...], at: float) -> None:
        self.cancel(key)
        delay_s = max(at - self._clock.now(), 0.0)
        loop = asyncio.get_running_loop()
        self._handles[key] = loop.call_later(delay_s, self._due, key, at)

    def cancel(self, key: tuple[Hashable, ...]) -> None:
        handle = self._handles.pop(key, None)
        if handle is not None:
            handle.cancel()

    def clear(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _due(self, key: tuple[Hashable, ...], at: float) -> None:
        early_s = at - self._clock.now()
        if early_s > 0:  # loops round to their own resolution
            loop = asyncio.get_running_loop()
            delay_s = max(early_s, SHORTEST_S)
            self._handles[key] = loop.call_later(delay_s, self._due, key, at)
            return
        del self._handles[key]
        self._ring(key)
