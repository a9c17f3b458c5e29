"""Where reads of several brokers begin and end, and how far they may advance. An unreachable broker
is waited for until the timeout."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from motet.client.logs import REST, LogOutline, SyncLogReader, open_log_sync
from motet.errors import EventsLost, MisuseError, UnavailableError
from motet.model import Filter
from motet.model.ids import NO_LIMIT
from motet.spark.frontier import Advance, Steps, advance, whole_floor
from motet.spark.options import ADVICE, LogPosition, Options, Vector

# ── the logs of several brokers ──────────────────────────────────────────────────────────

T = TypeVar("T")


class Account:
    """What a broker tells about a pubend without reading it."""

    def __init__(self, url: str, first_tick: int, last_tick: int, gone_cut: int) -> None:
        self.url = url
        self.first_tick = first_tick
        self.last_tick = last_tick
        self.gone_cut = gone_cut


class Brokers:
    """The logs of several brokers."""

    def __init__(self, urls: tuple[str, ...], timeout_s: float) -> None:
        self._urls = urls
        self._timeout_s = timeout_s
        self._logs: dict[str, SyncLogReader] = {}
        self._homes: dict[str, str] = {}
        """By pubend, the URL of its broker."""

    def describe(self) -> dict[str, Account]:
        """By pubend, sorted by name."""
        found: dict[str, Account] = {}
        for url in self._urls:
            for each in self._asked(url, lambda log: log.describe()):
                if each.pubend in found:
                    raise MisuseError(
                        f"{found[each.pubend].url} and {url} are the same broker; name only "
                        f"one of them"
                    )
                found[each.pubend] = Account(url, each.first_tick, each.last_tick, each.gone_cut)
        self._homes = {pubend: account.url for pubend, account in found.items()}
        return dict(sorted(found.items()))

    def home(self, pubend: str) -> str:
        if pubend not in self._homes:
            self.describe()
        if pubend not in self._homes:
            raise MisuseError(f"none of the brokers {', '.join(self._urls)} has pubend {pubend}")
        return self._homes[pubend]

    def outline(self, pubend: str, **options: Any) -> LogOutline:
        """See `LogReader.outline`."""
        return self._asked(self.home(pubend), lambda log: log.outline(pubend, **options))

    def set_cursor(self, name: str, pubend: str, tick: int) -> None:
        """Acknowledge everything up to this tick."""
        self._asked(self.home(pubend), lambda log: log.set_cursor(name, tick, pubend=pubend))

    def first_batch(self, url: str, pubend: str, **options: Any) -> Any:
        """The first batch of a read that has rows, or None."""

        def read(log: SyncLogReader) -> Any:
            batches = log.read(pubend=pubend, limit=1, **options)
            return next((batch for batch in batches if len(batch)), None)

        return self._asked(url, read)

    def is_quiet(
        self, pubend: str, since: int, upto: int, filter: Filter, patience_s: float
    ) -> bool:
        """Whether no event in a range matches; False if checking takes longer than `patience_s`."""

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
        log = self._logs.get(url)
        if log is None:
            log = self._logs[url] = open_log_sync(url, timeout=self._timeout_s, wait=True)
        return ask(log)


# ── the planner ──────────────────────────────────────────────────────────────────────────

POLL_S: Final = 0.05
PATIENT_S: Final = 1.0
"""How long a call waits if all it finds is a transaction that has not reached every pubend yet."""
LEAST_STEPS: Final = 64
"""Limits are met with a precision of one part in this number."""
STEP_EVENTS: Final = 10_000


class PlannedRange(NamedTuple):
    """The range from one position to the next, and what was found in it."""

    start: Vector
    end: Vector
    first: Vector
    """Where reading begins: at the start, or later if events there are no longer kept."""
    outlines: Mapping[str, LogOutline]


class Planner:
    def __init__(self, brokers: Brokers, options: Options, *, every_block: bool = False) -> None:
        self._brokers = brokers
        self._options = options
        self._every_block = every_block
        """Outlines must name all transactions, because tasks need them for the rows."""
        self._planned: PlannedRange | None = None
        self._lagging_since: dict[str, float] = {}
        """By transaction, when it was first seen at one pubend but not at another; by pubend, when
        steps elsewhere were first seen to come behind it."""
        self._behind: dict[str, int] = {}
        """By pubend, the highest known cut before the position read; see `_look_behind`."""
        self._gone: dict[str, tuple[int, int]] = {}
        """By pubend, the first and the last tick of a range that others come behind, but that the
        log has lost; see `_advanced`."""
        self.seen: Vector = {}
        """The end of each log when it was last checked."""
        self.outlines: dict[str, LogOutline] = {}
        """By pubend, the outlines of that time."""

    def at(self, position: LogPosition) -> Vector:
        """The vector for a position. One that would split a transaction is moved before it."""
        match position.kind:
            case "earliest":
                return self._floor(self._accounts())
            case "latest":
                return self.latest()
            case "tick":
                return self._upto(dict.fromkeys(self._accounts(), position.tick))
            case "ticks":
                return self._at_ticks(dict(position.ticks))
        return self._at_transaction(position.transaction)

    def latest(self) -> Vector:
        """The position after everything logged now. Waits for missing parts of transactions."""
        accounts = self._accounts()
        goal = {name: account.last_tick + 1 for name, account in accounts.items()}
        at = self._floor(accounts)
        until_s = time.monotonic() + self._options.lag_timeout_s
        while True:
            found = self._advanced(at, self._outlines(at))
            at = found.vector
            if all(at[name] >= tick for name, tick in goal.items()):
                return at
            if time.monotonic() > until_s:
                raise self._too_late(found.lagging, found.ahead)
            time.sleep(POLL_S)
            self._accounts()

    def onward(self, start: Vector, most_events: int, most_bytes: int, bound: Vector) -> Vector:
        """The next position within limits, and not beyond the bound if there is one."""
        until_s = time.monotonic() + PATIENT_S
        while True:
            at = self.kept_of(start, bound)
            outlines = self._outlines(at, most_events, most_bytes, bound)
            found = self._advanced(at, outlines, most_events, most_bytes)
            self._watch(found, outlines, most_events, most_bytes)
            kept = {name: tick for name, tick in start.items() if name not in at}
            is_over = not self._lagging_since or time.monotonic() > until_s
            if found.vector != at or (is_over and not self._look_behind(at, found.lagging)):
                end = {**kept, **found.vector}
                self._planned = PlannedRange(dict(start), end, at, outlines)
                return end
            time.sleep(POLL_S)

    def planned(self, start: Vector, end: Vector) -> PlannedRange:
        """The range between two positions. Known if `onward` has just returned this end for this
        start; otherwise, as with a batch from a checkpoint, the brokers are asked."""
        found = self._planned
        if found is None or (found.start, found.end) != (start, end):
            return PlannedRange(start, end, self.kept_of(start, end), {})
        return found

    def kept_of(self, start: Vector, bound: Vector) -> Vector:
        """Where to continue from a position, given what is kept, for the pubends in `bound` (all if
        it is empty). New pubends begin with their oldest event."""
        accounts, fails = self._accounts(), self._options.fail_on_data_loss
        for name in start:
            if name not in accounts and fails:
                raise MisuseError(
                    f"the checkpoint has pubend {name}, but none of the brokers "
                    f"{', '.join(self._options.brokers)} has it; add its broker, or set "
                    f"failOnDataLoss to false"
                )
        names = [name for name in accounts if not bound or name in bound]
        late = {name for name in names if name in start and start[name] < accounts[name].first_tick}
        for name in sorted(late):
            if fails:
                raise EventsLost(name, start[name], accounts[name].first_tick - 1, advice=ADVICE)
        if late or any(name not in start for name in names):
            floor = self._floor(accounts)
            return {name: max(start.get(name, 0), floor[name]) for name in names}
        return {name: start[name] for name in names}

    # ── the state of the logs ────────────────────────────────────────────────────────────

    def _accounts(self) -> dict[str, Account]:
        accounts = self._brokers.describe()
        self.seen = {name: account.last_tick + 1 for name, account in accounts.items()}
        return accounts

    def _outlines(
        self,
        since: Vector,
        most_events: int = NO_LIMIT,
        most_bytes: int = NO_LIMIT,
        bound: Vector | None = None,
    ) -> dict[str, LogOutline]:
        bound = bound or {}
        found: dict[str, LogOutline] = {}
        for name, tick in since.items():
            upto = bound.get(name, self.seen[name]) - 1
            if tick > upto:
                continue
            found[name] = outline = self._brokers.outline(
                name,
                since=tick,
                upto=upto,
                step_events=max(min(STEP_EVENTS, most_events // LEAST_STEPS), 1),
                step_bytes=max(most_bytes // LEAST_STEPS, 1),
                most_events=most_events,
                most_bytes=most_bytes,
                every_block=self._every_block,
            )
            if outline.lost and self._options.fail_on_data_loss:
                raise EventsLost(name, *outline.lost[0], advice=ADVICE)
        self.outlines = found
        return found

    def _steps(self, outlines: Mapping[str, LogOutline]) -> Steps:
        return {name: outline.steps for name, outline in outlines.items()}

    def _advanced(
        self,
        at: Vector,
        outlines: Mapping[str, LogOutline],
        most_events: int = NO_LIMIT,
        most_bytes: int = NO_LIMIT,
    ) -> Advance:
        """A publisher's earlier events were durable before the outline named them. If the log that
        should have them ends before, even now, it has lost them, and nothing waits for them."""
        limits = most_events, most_bytes
        while True:
            found = advance(at, self._steps(outlines), *limits, self._behind, self._gone)
            unseen = [name for name, tick in found.ahead.items() if tick >= self.seen[name]]
            if not unseen:
                return found
            accounts = self._brokers.describe()
            ends = {name: accounts[name].last_tick + 1 for name in unseen}
            lost = {n: (e, found.ahead[n]) for n, e in ends.items() if e <= found.ahead[n]}
            if not lost:
                return found
            self._gone |= lost

    # ── incomplete transactions ──────────────────────────────────────────────────────────

    def _watch(
        self, found: Advance, outlines: Mapping[str, LogOutline], most_events: int, most_bytes: int
    ) -> None:
        """Remember lagging transactions, and pubends that others come behind; raise if one has
        lagged for too long."""
        now_s = time.monotonic()
        cut_short = {
            name
            for name, outline in outlines.items()
            if outline.events >= most_events or outline.size_bytes >= most_bytes
        }
        lagging = {
            tx: missing
            for tx, missing in found.lagging.items()
            if not cut_short.intersection(missing)
        }
        ahead = {name: tick for name, tick in found.ahead.items() if name not in cut_short}
        since = self._lagging_since
        self._lagging_since = {each: since.get(each, now_s) for each in (*lagging, *ahead)}
        limit_s = self._options.lag_timeout_s
        late = [each for each, at_s in self._lagging_since.items() if now_s - at_s > limit_s]
        if late:
            raise self._too_late(
                {tx: missing for tx, missing in lagging.items() if tx in late},
                {name: tick for name, tick in ahead.items() if name in late},
            )

    def _look_behind(self, at: Vector, lagging: Mapping[str, tuple[str, ...]]) -> bool:
        """Whether some pubends that seem to lag are in fact past the awaited transaction. This
        happens if the waiting pubends are new and were not read when it came."""
        found = False
        for name in dict.fromkeys(name for missing in lagging.values() for name in missing):
            account = self._brokers.describe()[name]
            number = account.gone_cut
            if at[name] > account.first_tick:
                range_ = {"since": account.first_tick, "upto": at[name] - 1}
                steps = self._brokers.outline(name, **range_, every_block=True).steps
                number = max([number, *(step.number for step in steps)])
            if number > self._behind.get(name, 0):
                self._behind[name] = number
                found = True
        return found

    def _too_late(self, lagging: Mapping[str, tuple[str, ...]], ahead: Vector) -> UnavailableError:
        waits = [f"{tx} is not yet at {', '.join(names)}" for tx, names in lagging.items()]
        waits += [
            f"events of publishers that have moved come behind tick {tick} of {name}, which is not "
            f"yet there"
            for name, tick in ahead.items()
        ]
        return UnavailableError(
            f"transactions or moves are still incomplete after {self._options.lag_timeout_s:g} s: "
            f"{'; '.join(waits) or 'one is still being written'}; check the broker's links with "
            f"`motet status`, or increase lagTimeout"
        )

    # ── positions ────────────────────────────────────────────────────────────────────────

    def _floor(self, accounts: Mapping[str, Account]) -> Vector:
        """The oldest position that splits no transaction."""
        first = {name: account.first_tick for name, account in accounts.items()}
        gone = {name: account.gone_cut for name, account in accounts.items()}
        if not any(gone.values()) and not any(map(self._begins_torn, accounts, accounts.values())):
            return first
        return whole_floor(first, self._steps(self._outlines(first)), gone)

    def _begins_torn(self, name: str, account: Account) -> bool:
        """Whether a log begins in the middle of a sink's batch, which has no number."""
        if account.first_tick <= 1 or account.first_tick > account.last_tick:
            return False
        range_ = {"since": account.first_tick, "upto": account.last_tick}
        steps = self._brokers.outline(name, **range_, step_events=1, most_events=1).steps
        return bool(steps) and steps[0].number == REST

    def _upto(self, wanted: Vector) -> Vector:
        """The last position, not beyond this one, that splits no transaction."""
        floor = self._floor(self._accounts())
        bound = {name: min(tick, self.seen[name]) for name, tick in wanted.items()}
        return self._advanced(floor, self._outlines(floor, bound=bound)).vector

    def _at_ticks(self, ticks: Vector) -> Vector:
        accounts = self._accounts()
        for name, tick in ticks.items():
            if name not in accounts:
                raise MisuseError(
                    f"there is a tick for pubend {name}, but the brokers have only "
                    f"{', '.join(accounts)}"
                )
            if tick < accounts[name].first_tick and self._options.fail_on_data_loss:
                raise EventsLost(name, tick, accounts[name].first_tick - 1, advice=ADVICE)
        return self._upto({name: ticks.get(name, 1) for name in accounts})

    def _at_transaction(self, tx: str) -> Vector:
        floor = self._floor(self._accounts())
        places: Vector = {}
        for name, tick in floor.items():
            before = tick
            outline = self._brokers.outline(name, since=tick, every_block=True)
            for step in outline.steps:
                if step.tx == tx:
                    places[name] = before
                    break
                before = step.upto + 1
        if not places:
            raise MisuseError(f"no events of transaction {tx} are kept at these brokers")
        earliest = min(places.values())
        return self._upto({name: places.get(name, earliest) for name in floor})
