"""At any time at most one broker has a session; in the end one has, where its client was told.

Between the decision at one broker and the arrival at the next, nobody has it. What brokers have is
what they would have after a restart. A broker that is down does not count until it is back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from motet.testing.checkers.result import BrokerState, CheckResult
from motet.testing.history import History

Key = tuple[str, str]
"""Client and epoch."""


class CopyWatch:
    """Called whenever the sessions of a broker change, because histories have only clients."""

    def __init__(self) -> None:
        self.verdict = CheckResult("copies")
        self.hosted: dict[str, dict[Key, None]] = {}
        """By broker that is up."""

    def look(self, broker: str, sessions: Iterable[Key], now: float) -> None:
        """These sessions are at a broker now."""
        before, here = self.hosted.get(broker, {}), dict.fromkeys(sessions)
        for key in here:
            if key not in before:
                self._check(broker, key, now)
        self.hosted[broker] = here

    def down(self, broker: str) -> None:
        self.hosted.pop(broker, None)

    def _check(self, broker: str, key: Key, now: float) -> None:
        for other, hosted in self.hosted.items():
            if other != broker and not self.verdict.holds(key not in hosted):
                self.verdict.violated(
                    f"{key[1]} of {key[0]} is at {other} and, at {now:.4f} s, at {broker}, too"
                )


def check(history: History, cores: Mapping[str, BrokerState]) -> CheckResult:
    verdict = CheckResult("copies")
    homes: dict[Key, list[str]] = {}
    for name, core in cores.items():
        for session in core.durable.sessions:
            homes.setdefault((session.client, session.epoch), []).append(name)
    for record in history.living if history.stays else ():
        key = (record.client, record.epoch)
        told = history.places.get(key, record.home)
        found = homes.get(key, [])
        if not verdict.holds(found == [told]):
            where = " and ".join(found) or "no broker"
            verdict.violated(f"{key[1]} of {key[0]} is at {where}, but its client is at {told}")
    return verdict
