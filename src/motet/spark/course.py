"""Where reads of some brokers begin, how far they may go, and where they end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from motet.client.log_outline import REST, LogOutline
from motet.errors import EventsLost, MisuseError, UnavailableError
from motet.model.ticks import NO_LIMIT
from motet.spark.brokers import Account, Brokers
from motet.spark.frontier import Advance, Steps, advance, whole_floor
from motet.spark.offsets import Vector
from motet.spark.options import ADVICE, Options
from motet.spark.positions import Position

POLL_S: Final = 0.05
PATIENT_S: Final = 1.0
"""A call that finds nothing but a transaction that is not everywhere yet waits so long for it."""
LEAST_STEPS: Final = 64
"""A limit is met within one part in so many."""
STEP_EVENTS: Final = 10_000


class Course:
    def __init__(self, brokers: Brokers, options: Options) -> None:
        self._brokers = brokers
        self._options = options
        self._lagging_since: dict[str, float] = {}
        """By transaction, when it was seen at one pubend and not at another."""
        self._behind: dict[str, int] = {}
        """By pubend, the number of a cut that lies before where it is read; see `_look_behind`."""
        self.seen: Vector = {}
        """Where all logs ended when they were looked at last."""
        self.outlines: dict[str, LogOutline] = {}
        """What was found then, by pubend."""

    def at(self, position: Position) -> Vector:
        """The place that people call so. One that would tear a transaction is put before it."""
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
        """The place that has all that is there now. It waits for what belongs to that."""
        accounts = self._accounts()
        goal = {name: account.last_tick + 1 for name, account in accounts.items()}
        at = self._floor(accounts)
        until_s = time.monotonic() + self._options.lag_timeout_s
        while True:
            found = advance(at, self._steps(self._outlines(at)))
            at = found.vector
            if all(at[name] >= tick for name, tick in goal.items()):
                return at
            if time.monotonic() > until_s:
                raise self._too_late(found.lagging)
            time.sleep(POLL_S)
            self._accounts()

    def onward(self, start: Vector, most_events: int, most_bytes: int, bound: Vector) -> Vector:
        """From a place to the next one within limits, and not beyond the bound if there is one."""
        until_s = time.monotonic() + PATIENT_S
        while True:
            at = self.kept_of(start, bound)
            outlines = self._outlines(at, most_events, most_bytes, bound)
            found = advance(at, self._steps(outlines), most_events, most_bytes, self._behind)
            self._watch(found, outlines, most_events, most_bytes)
            kept = {name: tick for name, tick in start.items() if name not in at}
            is_over = not self._lagging_since or time.monotonic() > until_s
            if found.vector != at or (is_over and not self._look_behind(at, found.lagging)):
                return {**kept, **found.vector}
            time.sleep(POLL_S)

    def kept_of(self, start: Vector, bound: Vector) -> Vector:
        """Where to go on from a place, given what is kept, for the pubends that have a bound. What
        is new begins with its oldest event."""
        accounts, fails = self._accounts(), self._options.fail_on_data_loss
        for name in start:
            if name not in accounts and fails:
                raise MisuseError(
                    f"none of {', '.join(self._options.brokers)} has pubend {name}, which the "
                    f"checkpoint names; name its broker, or set failOnDataLoss to false"
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

    # ── what is there ────────────────────────────────────────────────────────────────────

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
            )
            if outline.lost and self._options.fail_on_data_loss:
                raise EventsLost(name, *outline.lost[0], advice=ADVICE)
        self.outlines = found
        return found

    def _steps(self, outlines: Mapping[str, LogOutline]) -> Steps:
        return {name: outline.steps for name, outline in outlines.items()}

    # ── transactions that are not everywhere yet ─────────────────────────────────────────

    def _watch(
        self,
        found: Advance,
        outlines: Mapping[str, LogOutline],
        most_events: int,
        most_bytes: int,
    ) -> None:
        """Remember who lags, and raise if that has been so for too long."""
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
        since = self._lagging_since
        self._lagging_since = {tx: since.get(tx, now_s) for tx in lagging}
        limit_s = self._options.lag_timeout_s
        late = {
            tx: lagging[tx] for tx, at_s in self._lagging_since.items() if now_s - at_s > limit_s
        }
        if late:
            raise self._too_late(late)

    def _look_behind(self, at: Vector, lagging: Mapping[str, tuple[str, ...]]) -> bool:
        """Whether some who seem to lag are in truth past what the others wait for: those others are
        new, and were not read when it came."""
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

    def _too_late(self, lagging: Mapping[str, tuple[str, ...]]) -> UnavailableError:
        waits = "; ".join(f"{tx} is not yet at {', '.join(names)}" for tx, names in lagging.items())
        return UnavailableError(
            f"transactions are not whole after {self._options.lag_timeout_s:g} s: "
            f"{waits or 'one is still being written'}; see whether its broker is cut off, or set "
            f"lagTimeout higher"
        )

    # ── places ───────────────────────────────────────────────────────────────────────────

    def _floor(self, accounts: Mapping[str, Account]) -> Vector:
        """The oldest place that tears no transaction."""
        first = {name: account.first_tick for name, account in accounts.items()}
        gone = {name: account.gone_cut for name, account in accounts.items()}
        if not any(gone.values()) and not any(map(self._begins_torn, accounts, accounts.values())):
            return first
        return whole_floor(first, self._steps(self._outlines(first)), gone)

    def _begins_torn(self, name: str, account: Account) -> bool:
        """Does a log begin in the middle of a batch of a sink? That has no number."""
        if account.first_tick <= 1 or account.first_tick > account.last_tick:
            return False
        range_ = {"since": account.first_tick, "upto": account.last_tick}
        steps = self._brokers.outline(name, **range_, step_events=1, most_events=1).steps
        return bool(steps) and steps[0].number == REST

    def _upto(self, wanted: Vector) -> Vector:
        """The last place before this one that tears no transaction."""
        floor = self._floor(self._accounts())
        bound = {name: min(tick, self.seen[name]) for name, tick in wanted.items()}
        return advance(floor, self._steps(self._outlines(floor, bound=bound))).vector

    def _at_ticks(self, ticks: Vector) -> Vector:
        accounts = self._accounts()
        for name, tick in ticks.items():
            if name not in accounts:
                raise MisuseError(
                    f"there is a tick for pubend {name}, but there is only {', '.join(accounts)}"
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
