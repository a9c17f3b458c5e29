"""A plan: all operations of a transaction, of several clients, and which must come before which.

A plan is data. Nothing happens before `client.execute(plan)`; then all of it does, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Literal

from motet.client.checks import checked_name, shown
from motet.client.explaining import Explanation, Sketch, explain_plan
from motet.client.outgoing import Outgoing, Publishable
from motet.errors import MisuseError, PlanError
from motet.model import Filter, as_filter
from motet.protocol.transactions.messages import MOST_OPERATIONS, Step

StepKind = Literal["advertise", "unadvertise", "subscribe", "unsubscribe", "publish"]


@dataclass(frozen=True, eq=False)
class Planned:
    """One operation of one client. Give it to `after` of those that must come behind it."""

    index: int
    client: str
    kind: StepKind
    name: str = ""
    filter: Filter | None = None
    body: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        what = self.name or (str(self.filter) if self.filter is not None else "")
        return f"{self.client}: {self.kind} {what}".rstrip()


After = Iterable[Planned] | None


class Plan:
    """Operations in the order of their making, unless `after` says what they depend on."""

    def __init__(self) -> None:
        self.steps: list[Planned] = []
        self._before: dict[int, set[int]] = {}
        self._last: set[int] = set()
        """Steps that no other is behind: whoever is behind all of them is behind every step."""
        self._counts: dict[str, int] = {}
        self._added: set[tuple[str, str, str]] = set()
        """What the plan puts in force: by client, kind and name."""
        self._body = Outgoing().body

    @staticmethod
    def load(path: str | Path) -> Plan:
        """A plan that was written down: see `motet.client.plan_file`."""
        from motet.client.plan_file import load_plan  # it needs this module

        return load_plan(path)

    # ── making ───────────────────────────────────────────────────────────────────────────

    def advertise(
        self, client: str, filter: str | Filter, *, name: str | None = None, after: After = None
    ) -> Planned:
        wanted = as_filter(filter)
        return self._add(client, "advertise", after, checked_name(name) or str(wanted), wanted)

    def subscribe(
        self, client: str, filter: str | Filter, *, name: str | None = None, after: After = None
    ) -> Planned:
        wanted = as_filter(filter)
        return self._add(client, "subscribe", after, checked_name(name) or str(wanted), wanted)

    def unadvertise(self, client: str, name: str, *, after: After = None) -> Planned:
        """Of the advertisement that its client knows by this name."""
        return self._add(client, "unadvertise", after, _checked_target(name))

    def unsubscribe(self, client: str, name: str, *, after: After = None) -> Planned:
        """Of the subscription that its client knows by this name."""
        return self._add(client, "unsubscribe", after, _checked_target(name))

    def publish(
        self, client: str, event: Publishable, payload: bytes = b"", *, after: After = None
    ) -> Planned:
        return self._add(client, "publish", after, body=bytes(self._body(event, payload)))

    def order(self, first: Planned, then: Planned) -> None:
        """One more dependency. What goes round in a circle is refused when the plan is executed."""
        self._check_ours((first, then))
        self._before[then.index].add(first.index)
        self._last.discard(first.index)
        if not self._last:  # a circle: every step is behind another
            self._last = {then.index}

    def _add(
        self,
        client: str,
        kind: StepKind,
        after: After,
        name: str = "",
        wanted: Filter | None = None,
        body: bytes = b"",
    ) -> Planned:
        if not isinstance(client, str) or not client:
            raise MisuseError(f"a step names its client by id, not {client!r}")
        if self._counts.get(client, 0) >= MOST_OPERATIONS:
            text = f"a plan has at most {MOST_OPERATIONS:,} steps of one client"
            raise PlanError(f"{text}, and {shown(client)} has them: make several plans of it")
        self._check_once(client, kind, name, wanted)
        step = Planned(len(self.steps), client, kind, name, wanted, body)
        before = set(self._last) if after is None else self._indices(after)
        self.steps.append(step)
        self._before[step.index] = before
        self._last -= before
        self._last.add(step.index)
        self._counts[client] = self._counts.get(client, 0) + 1
        if wanted is not None:
            self._added.add((client, kind, name))
        return step

    def _check_once(self, client: str, kind: StepKind, name: str, wanted: Filter | None) -> None:
        if wanted is not None and (client, kind, name) in self._added:
            text = f"{client} is to {kind} {name!r} twice: leave one of them out, or name it"
            raise MisuseError(text)
        if (client, kind.removeprefix("un"), name) in self._added and kind.startswith("un"):
            raise PlanError(
                f"{client} is to {kind} {name!r}, which this plan adds itself: leave both out; or "
                "if an older one of this name is meant, let the plan take that one back first"
            )

    def _indices(self, after: Iterable[Planned]) -> set[int]:
        if not isinstance(after, Iterable):
            raise MisuseError(f"`after` takes steps of this plan, in a list, not {shown(after)}")
        found = list(after)
        self._check_ours(found)
        return {each.index for each in found}

    def _check_ours(self, steps: Iterable[Planned]) -> None:
        for each in steps:
            if not isinstance(each, Planned):
                raise MisuseError(f"`after` takes steps of this plan, not {each!r}")
            if each.index >= len(self.steps) or self.steps[each.index] is not each:
                raise PlanError(f"{each} is a step of another plan")

    # ── looking ──────────────────────────────────────────────────────────────────────────

    @property
    def clients(self) -> list[str]:
        return list(dict.fromkeys(step.client for step in self.steps))

    def dependencies(self, step: Planned) -> list[Planned]:
        """The steps that come directly before one; it is behind all that these are behind, too."""
        self._check_ours((step,))
        return [self.steps[index] for index in sorted(self._before[step.index])]

    def in_order(self) -> list[Planned]:
        """One order that obeys all dependencies: of those that could come next, the one that was
        made first. `PlanError` if there is none."""
        left = {index: set(before) for index, before in self._before.items()}
        behind: dict[int, list[int]] = {index: [] for index in left}
        for index, before in left.items():
            for each in before:
                behind[each].append(index)
        ready = [index for index, before in left.items() if not before]  # sorted, so a heap
        found: list[Planned] = []
        while ready:
            first = heappop(ready)
            found.append(self.steps[first])
            del left[first]
            for index in behind[first]:
                left[index].discard(first)
                if not left[index]:
                    heappush(ready, index)
        if left:
            raise PlanError(f"the plan goes round in a circle: {self._circle(left)}")
        return found

    def _circle(self, left: dict[int, set[int]]) -> str:
        """Everything that is left waits for something that is left: follow it until it repeats."""
        path = [min(left)]
        while (following := min(left[path[-1]])) not in path:
            path.append(following)
        circle = path[path.index(following) :]
        names = [str(self.steps[index]) for index in reversed(circle)]
        return " → ".join([*names, names[0]])

    def parts(self) -> tuple[tuple[str, tuple[Step, ...]], ...]:
        """By client, what it is to do, each step with its place in the order."""
        found: dict[str, list[Step]] = {}
        for place, step in enumerate(self.in_order(), 1):
            told = Step(step.kind, f"{place:08d}", step.name, step.filter, step.body)
            found.setdefault(step.client, []).append(told)
        if not found:
            raise PlanError("the plan is empty")
        return tuple((client, tuple(steps)) for client, steps in found.items())

    def explain(self, sketch: Sketch | None = None) -> Explanation:
        """The phases of its execution. How many messages and hops that is depends on the overlay:
        `await client.explain(plan)` asks it. `PlanError` as when it is executed."""
        steps = [(step.client, step.kind) for step in self.in_order()]
        if not steps:
            raise PlanError("the plan is empty")
        return explain_plan(steps, sketch)


def _checked_target(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise MisuseError(f"what is taken back in a plan is named, not {name!r}")
    return name
