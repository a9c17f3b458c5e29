"""Plans as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet import Plan
from motet.client.plan import parse_plan
from motet.errors import PlanError

WHOLE = """
[[step]]
id = "ends"
client = "a"
do = "unsubscribe"
name = "x1"

[[step]]
client = "b"
do = "subscribe"
filter = "instance = 'x1'"
after = []

[[step]]
client = "a"
do = "publish"
event = { moved = "x1", step = 3 }
payload = "now"
after = ["ends"]

[[step]]
client = "a"
do = "advertise"
filter = "moved is not null"
name = "moves"

[[step]]
client = "a"
do = "unadvertise"
name = "older moves"
"""


def test_a_plan_file_gives_the_same_plan_as_code(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(WHOLE)
    plan = Plan.load(path)
    assert [(step.client, step.kind) for step in plan.steps] == [
        ("a", "unsubscribe"),
        ("b", "subscribe"),
        ("a", "publish"),
        ("a", "advertise"),
        ("a", "unadvertise"),
    ]
    assert plan.dependencies(plan.steps[1]) == []
    assert plan.dependencies(plan.steps[2]) == [plan.steps[0]]
    assert plan.dependencies(plan.steps[3]) == plan.steps[1:3]  # the first is before these


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[step", "not TOML"),
        ("", "no steps"),
        ("other = 1\n[[step]]\nclient = 'a'", "remove other"),
        ("[[step]]\nclient = 'a'\ndo = 'dance'", "step 1: `do` is one of"),
        ("[[step]]\nclient = 'a'\ndo = 'subscribe'", "step 1: subscribe needs filter"),
        ("[[step]]\ndo = 'publish'\nevent = {a = 1}", "publish needs client"),
        ("[[step]]\nclient = 'a'\ndo = 'subscribe'\nfilter = 'x ='", "step 1: "),
        ("[[step]]\nclient = 'a'\ndo = 'publish'\nevent = {a = [1]}", "step 1: "),
        ("[[step]]\nclient = 'a'\ndo = 'unsubscribe'\nname = 'x'\nafter = ['y']", "the id y"),
        (
            "[[step]]\nclient = 'a'\ndo = 'unsubscribe'\nname = 'x'\nwhen = 'now'",
            "does not take when",
        ),
        ("[[step]]\nclient = 'a'\ndo = 'unsubscribe'\nname = 'x'\nid = 3", "an id is text"),
        ("step = [3]", "a step is a table"),
    ],
)
def test_errors_in_a_plan_file_are_named(text: str, problem: str) -> None:
    with pytest.raises(PlanError, match=problem):
        parse_plan(text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read"):
        Plan.load(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('client = "a"\ndo = ["x"]', "`do` is one of"),
        (
            'client = "a"\ndo = "publish"\nevent = {}\nfilter = "n > 1"',
            "publish does not take filter",
        ),
        ('client = "a"\ndo = "publish"\nevent = {}\npayload = [1]', "a payload is text, not"),
        (
            'client = "a"\ndo = "unsubscribe"\nname = "x"\nevent = {}',
            "unsubscribe does not take event",
        ),
    ],
)
def test_every_key_is_one_that_its_step_has(text: str, problem: str) -> None:
    with pytest.raises(PlanError, match=f"step 1: .*{problem}"):
        parse_plan(f"[[step]]\n{text}")


def test_an_id_is_given_once() -> None:
    step = '[[step]]\nid = "x"\nclient = "a"\ndo = "publish"\nevent = { n = 1 }\n'
    with pytest.raises(PlanError, match="step 2: an earlier step has the same id 'x'"):
        parse_plan(step + step)
