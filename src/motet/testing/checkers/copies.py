"""At any time at most one broker has a session, and at most one copy of a hosted client runs. In
the end one has, where its client was told, and one runs there.

Between the decision at one broker and the arrival at the next, nobody has it. What brokers have is
what they would have after a restart. A broker that is down does not count until it is back, and its
copies have ended with it. Two copies may run only if a broker on the path between them has lost its
state, or a link on it was given up: then a session may have been opened beside another one.
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


class RunWatch:
    """Called when the code of a hosted client begins to run somewhere, and when it has ended."""

    def __init__(self) -> None:
        self.verdict = CheckResult("copies")
        self._running: dict[str, list[str]] = {}
        """By client: the brokers whose containers run a copy."""

    def begins(self, client: str, broker: str, now: float, history: History) -> None:
        running = self._running.setdefault(client, [])
        self.verdict.checked += 1
        for other in running:
            if not history.forgot((other, broker), 0.0, now):
                text = f"a copy of {client} runs at {other} and, at {now:.4f} s, another one at"
                self.verdict.violated(f"{text} {broker}")
        running.append(broker)

    def ends(self, client: str, broker: str) -> None:
        running = self._running.get(client, [])
        if broker in running:
            running.remove(broker)

    def places(self, client: str) -> tuple[str, ...]:
        return tuple(self._running.get(client, ()))


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
    for hosted in history.hosted.values():
        places = (at for (client, _), at in homes.items() if client == hosted.client)
        found = [home for at in places for home in at]
        if not verdict.holds(len(found) == 1 and tuple(found) == hosted.copies):
            where = " and ".join(found) or "no broker"
            running = " and ".join(hosted.copies) or "no broker"
            text = f"the session of {hosted.client} is at {where}, and copies run at {running}"
            verdict.violated(text)
    return verdict
