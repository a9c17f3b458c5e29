"""`make house` counts what it says it counts."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from motet.protocol.transactions import machine
from motet.protocol.transactions.machine import Transactions
from tools import house, walks
from tools.source import Source

ONE = """
from two import Base as Other
class Own:
    def a(self): ...
class Middle(Own):
    def b(self): ...
    def _c(self): ...
class Last(Middle, Other[int]):
    def a(self): ...
class Mine(Exception): ...
class Yours(Mine): ...
"""
TWO = """
class Base:
    def d(self): ...
class Own: ...
"""


def test_classes_are_counted_with_what_they_inherit(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(ONE)
    (tmp_path / "two.py").write_text(TWO.replace("two", f"{tmp_path.name}.two"))
    (tmp_path / "one.py").write_text(ONE.replace("two", f"{tmp_path.name}.two"))
    source = Source(tmp_path)
    one = f"{tmp_path.name}.one"
    assert source.depth(f"{one}.Own") == 1
    assert source.depth(f"{one}.Last") == 3
    assert source.methods(f"{one}.Last") == {"a", "b", "_c", "d"}
    assert source.public_methods(f"{one}.Last") == {"a", "b", "d"}
    assert list(source.defined_twice) == ["Own"]
    assert source.is_error(f"{one}.Yours")
    assert not source.is_error(f"{one}.Last")


def planted(folder: Path, files: dict[str, str]) -> Source:
    """A package `planted` with these modules."""
    package = folder / "planted"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Source(package, folder / "no labs")


@pytest.mark.parametrize(
    ("header", "base"),
    [
        ("from planted.client import Client", "Client"),
        ("from planted import Client as Base", "Base"),
        ("from planted import client", "client.Client"),
        ("import planted.client", "planted.client.Client"),
        ("import planted.client as other", "other.Client[int]"),
        ("import planted", "planted.client.inner.Client"),
    ],
)
def test_a_class_is_followed_through_a_package_that_exports_it(
    header: str, base: str, tmp_path: Path
) -> None:
    methods = "".join(f"    def m{n}(self): ...\n" for n in range(20))
    more = "".join(f"    def n{n}(self): ...\n" for n in range(10))
    files = {
        "__init__.py": "from planted.client import Client",
        "client/__init__.py": "from planted.client.inner import Client",
        "client/inner.py": f"class Root: ...\nclass Client(Root):\n{methods}",
        "user.py": f"{header}\nclass Wide({base}):\n{more}",
    }
    source = planted(tmp_path, files)
    assert source.depth("planted.user.Wide") == 3
    assert len(source.public_methods("planted.user.Wide")) == 30


def test_packages_that_import_each_other_are_followed_to_an_end(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from planted.other import Name",
        "other.py": "from planted import Name\nclass Mine(Name): ...",
    }
    assert planted(tmp_path, files).depth("planted.other.Mine") == 1


def test_a_log_of_segments_counts_as_a_log() -> None:
    assert Source().depth("motet.runtime.pubend.state.SegmentedLog") == 2


def test_the_table_has_a_value_beside_each_goal(capsys: pytest.CaptureFixture[str]) -> None:
    house.main(["--no-walks", "--json"])
    told = json.loads(capsys.readouterr().out)
    values = {row["what"]: row["value"] for row in told["rows"]}
    assert sum(told["lines"].values()) == values["lines in src"] + values["lines in labs"]
    house.main(["--no-walks"])
    assert "files that name BrokerCore" in capsys.readouterr().out


@pytest.mark.parametrize("name", walks.WALKS)
def test_every_walk_goes_through_several_rooms(name: str) -> None:
    found = walks.measure(name, runs=1)
    assert found["files"] > found["rooms"] > 3
    assert found["calls"] > found["room changes"] > 20


def test_a_subscription_outside_a_transaction_meets_the_transaction_machine_once() -> None:
    walk = walks.Walk()
    asyncio.run(walks.subscribe(walk))
    methods = {f"{Transactions.__name__}.{name}" for name in vars(Transactions) if name[0] != "_"}
    met = [code.co_qualname for code in walk.calls if code.co_filename == machine.__file__]
    assert [name for name in met if name in methods] == ["Transactions.admit"]


def test_no_test_has_its_own_class_of_broker_processes() -> None:
    """`motet.fleet` starts them. The writer of golden files stays as the old release was."""
    tests = Path(__file__).parents[1]
    fleet = {each.name for each in Source().classes.values() if "motet.fleet" in each.module}
    assert "BrokerProcess" in fleet
    for path in tests.rglob("*.py"):
        if path.parent.name != "golden" and path != Path(__file__):
            text = path.read_text()
            again = fleet & set(re.findall(r"^class (\w+)", text, re.MULTILINE))
            assert not again, f"{path} defines {again} again"
            # The tests of the command line test this option itself.
            starts = "--while-stdin" in text and path.name != "test_cli.py"
            assert not starts, f"{path} starts brokers itself"
