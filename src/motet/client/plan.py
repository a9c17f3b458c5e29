"""A plan: all operations of a transaction, of several clients, with their dependencies.

A plan is data. Nothing happens before `client.execute(plan)`, which executes all of it or nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Literal

from motet.client.checks import checked_name, shown
from motet.client.explanation import Explanation, Sketch, explain_plan
from motet.client.publications import EventEncoder, Publishable
from motet.client.session.state import INVERSE
from motet.errors import MisuseError, MotetError, PlanError
from motet.model import Filter, as_filter
from motet.protocol.transactions.messages import MOST_OPERATIONS, Step

StepKind = Literal["advertise", "unadvertise", "subscribe", "unsubscribe", "publish"]


@dataclass(frozen=True, eq=False)
class Planned:
    """One operation of one client. Pass it as `after` to the operations that depend on it."""

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
    """Operations in the order in which they were added, unless `after` names dependencies."""

    def __init__(self) -> None:
        self.steps: list[Planned] = []
        self._before: dict[int, set[int]] = {}
        self._last: set[int] = set()
        """Steps that no step depends on: a step after all of them is after every step."""
        self._counts: dict[str, int] = {}
        self._added: set[tuple[str, str, str]] = set()
        """The registrations that the plan begins: by client, kind and name."""
        self._body = EventEncoder().body

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan from a file: see `parse_plan`."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            why = getattr(problem, "strerror", None) or problem
            raise PlanError(f"cannot read the plan {path}: {why}") from None
        return parse_plan(text, str(path))

    # ── building ─────────────────────────────────────────────────────────────────────────

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
        """End the client's advertisement of this name."""
        return self._add(client, "unadvertise", after, _checked_target(name))

    def unsubscribe(self, client: str, name: str, *, after: After = None) -> Planned:
        """End the client's subscription of this name."""
        return self._add(client, "unsubscribe", after, _checked_target(name))

    def publish(
        self, client: str, event: Publishable, payload: bytes = b"", *, after: After = None
    ) -> Planned:
        return self._add(client, "publish", after, body=bytes(self._body(event, payload)))

    def order(self, first: Planned, then: Planned) -> None:
        """Add a dependency. A cycle is refused when the plan is executed."""
        self._check_ours((first, then))
        self._before[then.index].add(first.index)
        self._last.discard(first.index)
        if not self._last:  # a cycle: every step depends on another
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
            raise PlanError(f"{text}, and {shown(client)} has more; split it into several plans")
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
            text = f"{client} is to {kind} {name!r} twice; omit one step, or use another name"
            raise MisuseError(text)
        if (client, kind.removeprefix("un"), name) in self._added and kind.startswith("un"):
            raise PlanError(
                f"{client} is to {kind} {name!r}, which the plan itself adds; omit both steps, or, "
                "if an older one of this name is meant, cancel it earlier in the plan"
            )

    def _indices(self, after: Iterable[Planned]) -> set[int]:
        if not isinstance(after, Iterable) or isinstance(after, str | bytes):
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

    # ── queries ──────────────────────────────────────────────────────────────────────────

    @property
    def clients(self) -> list[str]:
        return list(dict.fromkeys(step.client for step in self.steps))

    def dependencies(self, step: Planned) -> list[Planned]:
        """The direct dependencies of a step."""
        self._check_ours((step,))
        return [self.steps[index] for index in sorted(self._before[step.index])]

    def in_order(self) -> list[Planned]:
        """The order of execution: of the steps whose dependencies are met, the one added first
        comes next. `PlanError` if there is a cycle."""
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
            raise PlanError(f"the steps of the plan form a cycle: {self._circle(left)}")
        return found

    def _circle(self, left: dict[int, set[int]]) -> str:
        """Every step in `left` depends on another one in it: follow them until one repeats."""
        path = [min(left)]
        while (following := min(left[path[-1]])) not in path:
            path.append(following)
        circle = path[path.index(following) :]
        names = [str(self.steps[index]) for index in reversed(circle)]
        return " → ".join([*names, names[0]])

    def parts(self) -> tuple[tuple[str, tuple[Step, ...]], ...]:
        """By client, its steps, each with its place in the order."""
        found: dict[str, list[Step]] = {}
        for place, step in enumerate(self.in_order(), 1):
            told = Step(step.kind, f"{place:08d}", step.name, step.filter, step.body)
            found.setdefault(step.client, []).append(told)
        if not found:
            raise PlanError("the plan is empty; add a step, for example with `plan.subscribe`")
        return tuple((client, tuple(steps)) for client, steps in found.items())

    def explain(self, sketch: Sketch | None = None) -> Explanation:
        """The phases of its execution. Messages and hops depend on the overlay: `await
        client.explain(plan)` asks it. `PlanError` as when it is executed."""
        steps = [(step.client, step.kind) for step in self.in_order()]
        if not steps:
            raise PlanError("the plan is empty; add a step, for example with `plan.subscribe`")
        return explain_plan(steps, sketch)


def _checked_target(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise MisuseError(f"a plan cancels entries by their names, not by {name!r}")
    return name


NEEDED = {
    "advertise": ("filter",),
    "subscribe": ("filter",),
    "unadvertise": ("name",),
    "unsubscribe": ("name",),
    "publish": ("event",),
}
"""By operation, the keys that it needs."""
OPTIONAL = {"advertise": ("name",), "subscribe": ("name",), "publish": ("payload",)}
ALWAYS = ("id", "client", "do", "after")


def parse_plan(text: str, place: str = "the plan") -> Plan:
    """Parse a plan in TOML: one table `[[step]]` per step, in order, unless `after` names
    dependencies. `PlanError` names the invalid step."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise PlanError(f"{place} is not TOML: {problem}") from None
    steps = data.pop("step", [])
    if data:
        raise PlanError(f"{place} may only have [[step]] tables; remove {', '.join(sorted(data))}")
    if not isinstance(steps, list) or not steps:
        raise PlanError(f"{place} has no steps; begin each with [[step]]")
    plan = Plan()
    known: dict[str, Planned] = {}
    for number, step in enumerate(steps, 1):
        try:
            made = _add(plan, step, known)
        except MotetError as problem:
            raise PlanError(f"{place}, step {number}: {problem}") from None
        if "id" in step:
            known[str(step["id"])] = made
    return plan


def _add(plan: Plan, step: Any, known: dict[str, Planned]) -> Planned:
    if not isinstance(step, dict):
        raise PlanError("a step is a table")
    _check_keys(step)
    if step.get("id") in known:
        raise PlanError(f"an earlier step has the same id {step['id']!r}; use another id")
    after = None
    if "after" in step:
        names = step["after"] if isinstance(step["after"], list) else [step["after"]]
        unknown = [str(name) for name in names if str(name) not in known]
        if unknown:
            raise PlanError(f"no earlier step has the id {', '.join(unknown)}")
        after = [known[str(name)] for name in names]
    client, kind = step["client"], step["do"]
    if kind == "publish":
        payload = step.get("payload", "").encode()
        return plan.publish(client, step["event"], payload, after=after)
    if kind in INVERSE:
        add = plan.advertise if kind == "advertise" else plan.subscribe
        return add(client, step["filter"], name=step.get("name"), after=after)
    end = plan.unadvertise if kind == "unadvertise" else plan.unsubscribe
    return end(client, step["name"], after=after)


def _check_keys(step: dict[str, Any]) -> None:
    kind = step.get("do")
    if not isinstance(kind, str) or kind not in NEEDED:
        raise PlanError(f"`do` is one of {', '.join(NEEDED)}, not {shown(kind)}")
    allowed = (*ALWAYS, *NEEDED[kind], *OPTIONAL.get(kind, ()))
    odd = sorted(set(step) - set(allowed))
    if odd:
        text = f"{kind} does not take {', '.join(odd)}"
        raise PlanError(f"{text}; it takes {', '.join(sorted(allowed))}")
    missing = [key for key in ("client", *NEEDED[kind]) if key not in step]
    if missing:
        raise PlanError(f"{kind} needs {', '.join(missing)}")
    if "id" in step and not isinstance(step["id"], str):
        raise PlanError(f"an id is text, not {shown(step['id'])}")
    if not isinstance(step.get("payload", ""), str):
        raise PlanError(f"a payload is text, not {shown(step['payload'])}")
