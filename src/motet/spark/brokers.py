"""Asking brokers about their logs. One that is away is asked again, until the time is over."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from motet.client.log_outline import LogOutline
from motet.client.sync_reading import SyncLogReader, open_log_sync
from motet.errors import Disconnected, MisuseError
from motet.model import Filter

FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 5.0

T = TypeVar("T")


class Patience:
    """How long to go on trying, and how long to wait between. Success makes it new."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.renew()

    def renew(self) -> None:
        self._until_s = time.monotonic() + self._patience_s
        self._wait_s = FIRST_WAIT_S

    def after(self, problem: Disconnected) -> None:
        """Wait a little, or raise if it has been too long."""
        wait_s = self._wait_s * random.uniform(0.5, 1.0)
        if time.monotonic() + wait_s > self._until_s:
            raise Disconnected(f"{problem} (tried for {self._patience_s:g} s)") from problem
        time.sleep(wait_s)
        self._wait_s = min(self._wait_s * 2, LONGEST_WAIT_S)


class Account:
    """What is known of a pubend without reading it."""

    def __init__(self, url: str, first_tick: int, last_tick: int, gone_cut: int) -> None:
        self.url = url
        self.first_tick = first_tick
        self.last_tick = last_tick
        self.gone_cut = gone_cut


class Brokers:
    """The logs of some brokers."""

    def __init__(self, urls: tuple[str, ...], timeout_s: float) -> None:
        self._urls = urls
        self._timeout_s = timeout_s
        self._logs: dict[str, SyncLogReader] = {}
        self._homes: dict[str, str] = {}
        """By pubend, the url of its broker."""

    def describe(self) -> dict[str, Account]:
        """By pubend, in order of their names."""
        found: dict[str, Account] = {}
        for url in self._urls:
            for each in self._asked(url, lambda log: log.describe()):
                if each.pubend in found:
                    raise MisuseError(
                        f"{found[each.pubend].url} and {url} are the same broker; name it once"
                    )
                found[each.pubend] = Account(url, each.first_tick, each.last_tick, each.gone_cut)
        self._homes = {pubend: account.url for pubend, account in found.items()}
        return dict(sorted(found.items()))

    def home(self, pubend: str) -> str:
        if pubend not in self._homes:
            self.describe()
        if pubend not in self._homes:
            raise MisuseError(f"none of {', '.join(self._urls)} has pubend {pubend}")
        return self._homes[pubend]

    def outline(self, pubend: str, **options: Any) -> LogOutline:
        """See `LogReader.outline`."""
        return self._asked(self.home(pubend), lambda log: log.outline(pubend, **options))

    def set_cursor(self, name: str, pubend: str, tick: int) -> None:
        """Everything up to this tick is done with."""
        self._asked(self.home(pubend), lambda log: log.set_cursor(name, tick, pubend=pubend))

    def first_batch(self, url: str, pubend: str, **options: Any) -> Any:
        """The first batch of a read that has rows; None if none has."""

        def read(log: SyncLogReader) -> Any:
            batches = log.read(pubend=pubend, limit=1, **options)
            return next((batch for batch in batches if len(batch)), None)

        return self._asked(url, read)

    def is_quiet(
        self, pubend: str, since: int, upto: int, filter: Filter, patience_s: float
    ) -> bool:
        """Whether no event in a range matches; no, if that takes longer than this to say."""

        def look(log: SyncLogReader) -> bool:
            until_s = time.monotonic() + patience_s
            for batch in log.read(
                pubend=pubend,
                since=since,
                upto=upto,
                filter=filter,
                columns=["tick"],
                limit=1,
                on_loss="tell",
            ):
                if len(batch) or time.monotonic() > until_s:
                    return False
            return True

        return self._asked(self.home(pubend), look)

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def _asked(self, url: str, ask: Callable[[SyncLogReader], T]) -> T:
        patience = Patience(self._timeout_s)
        while True:
            log = self._logs.get(url)
            if log is None:
                log = self._logs[url] = open_log_sync(url, timeout=self._timeout_s)
            try:
                return ask(log)
            except Disconnected as problem:
                self._logs.pop(url).close()
                patience.after(problem)
