"""A plan: all operations of a transaction, of several clients, and which must come before which.

A plan is data. Nothing happens before `client.execute(plan)`; then all of it does, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from motet.client.checks import checked_name
from motet.client.explaining import Explanation, Sketch, explain_plan
from motet.client.outgoing import Outgoing, Publishable
from motet.errors import MisuseError, PlanError
from motet.model import Filter, as_filter
from motet.protocol.transactions.messages import Step

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
        if wanted is not None and any(
            (each.client, each.kind, each.name) == (client, kind, name) for each in self.steps
        ):
            text = f"{client} is to {kind} {name!r} twice: leave one of them out, or name it"
            raise MisuseError(text)
        step = Planned(len(self.steps), client, kind, name, wanted, body)
        if after is None:
            before = set(range(step.index))
        else:
            found = list(after)
            self._check_ours(found)
            before = {each.index for each in found}
        self.steps.append(step)
        self._before[step.index] = before
        return step

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
        """The steps that come directly before one."""
        self._check_ours((step,))
        return [self.steps[index] for index in sorted(self._before[step.index])]

    def in_order(self) -> list[Planned]:
        """One order that obeys all dependencies: of those that could come next, the one that was
        made first. `PlanError` if there is none."""
        left = {index: set(before) for index, before in self._before.items()}
        found: list[Planned] = []
        while left:
            ready = [index for index, before in left.items() if not before]
            if not ready:
                raise PlanError(f"the plan goes round in a circle: {self._circle(left)}")
            found.append(self.steps[ready[0]])
            del left[ready[0]]
            for before in left.values():
                before.discard(ready[0])
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
