"""Plans as TOML files: one table per step, in order, unless `after` says what comes before.

[[step]]
id = "begin"
client = "agent-1"
do = "subscribe"
filter = "process = 'p1'"
name = "x1"

[[step]]
client = "dispatcher"
do = "unsubscribe"
name = "x1"
after = ["begin"]

[[step]]
client = "environment"
do = "publish"
event = { process = "p1", step = 0 }
payload = "begin"
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from motet.client.checks import shown
from motet.client.plan import Plan, Planned
from motet.errors import MotetError, PlanError

NEEDED = {
    "advertise": ("filter",),
    "subscribe": ("filter",),
    "unadvertise": ("name",),
    "unsubscribe": ("name",),
    "publish": ("event",),
}
"""By what is to be done, the keys that it needs."""
OPTIONAL = {"advertise": ("name",), "subscribe": ("name",), "publish": ("payload",)}
ALWAYS = ("id", "client", "do", "after")


def load_plan(path: str | Path) -> Plan:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise PlanError(f"cannot read the plan {path}: {problem}") from None
    return parse_plan(text, str(path))


def parse_plan(text: str, place: str = "the plan") -> Plan:
    """`PlanError` names the step that is wrong."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise PlanError(f"{place} is not TOML: {problem}") from None
    steps = data.pop("step", [])
    if data:
        raise PlanError(f"{place} has tables called step, nothing else: {', '.join(sorted(data))}")
    if not isinstance(steps, list) or not steps:
        raise PlanError(f"{place} has no steps: each begins with [[step]]")
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
        raise PlanError(f"a step before it has the id {step['id']!r} already")
    after = None
    if "after" in step:
        names = step["after"] if isinstance(step["after"], list) else [step["after"]]
        unknown = [str(name) for name in names if str(name) not in known]
        if unknown:
            raise PlanError(f"no step before it has the id {', '.join(unknown)}")
        after = [known[str(name)] for name in names]
    client, name = step["client"], step.get("name")
    match step["do"]:
        case "advertise":
            return plan.advertise(client, step["filter"], name=name, after=after)
        case "subscribe":
            return plan.subscribe(client, step["filter"], name=name, after=after)
        case "unadvertise":
            return plan.unadvertise(client, step["name"], after=after)
        case "unsubscribe":
            return plan.unsubscribe(client, step["name"], after=after)
        case _:
            payload = step.get("payload", "").encode()
            return plan.publish(client, step["event"], payload, after=after)


def _check_keys(step: dict[str, Any]) -> None:
    kind = step.get("do")
    if not isinstance(kind, str) or kind not in NEEDED:
        raise PlanError(f"`do` is one of {', '.join(NEEDED)}, not {shown(kind)}")
    allowed = (*ALWAYS, *NEEDED[kind], *OPTIONAL.get(kind, ()))
    odd = sorted(set(step) - set(allowed))
    if odd:
        text = f"a step that is to {kind} has no {', '.join(odd)}"
        raise PlanError(f"{text}; it has {', '.join(sorted(allowed))}")
    missing = [key for key in ("client", *NEEDED[kind]) if key not in step]
    if missing:
        raise PlanError(f"{kind} needs {', '.join(missing)}")
    if "id" in step and not isinstance(step["id"], str):
        raise PlanError(f"an id is text, not {shown(step['id'])}")
    if not isinstance(step.get("payload", ""), str):
        raise PlanError(f"a payload is text, not {shown(step['payload'])}")
