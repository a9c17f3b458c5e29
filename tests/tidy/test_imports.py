"""Imports that would make a pure room impure. `test_rooms.py` has the table of all imports."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC, LABS = ROOT / "src" / "motet", ROOT / "labs" / "motet_labs"

IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "threading", "queue", "signal", "subprocess"),
    *("socket", "select", "ssl", "http", "urllib", "time", "sched", "random", "uuid", "secrets"),
    *("os", "pathlib", "io", "glob", "shutil", "tempfile", "fileinput", "platform", "getpass"),
    *("importlib", "logging"),
}
"""What a pure room must never import."""

IMPURE_ATTRIBUTES = {"now", "utcnow", "today"}
"""What a pure room must never take from a class, or call: the clock of the machine."""
IMPURE_FUNCTIONS = {"open", "input", "print", "__import__", "eval", "exec"}

IMPURE_BROKER = ("motet.broker.driver", "motet.broker.folder", "motet.broker.overlay")

PURE_ORDERING = {
    *("machine", "contract", "publisher", "stream", "delivery", "spans", "envelope", "events"),
    "topics",
}
"""The machine of a client, which the simulator runs as well."""

FILES = sorted(SRC.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def is_pure(path: Path) -> bool:
    if room(path) == "broker":
        return "core" in path.relative_to(SRC).parts  # the folder shows purity
    if room(path) == "matching":
        return path.stem != "index"  # which engine to use is asked of the environment, once
    if room(path) == "client":
        return path.parent.name == "session"
    if room(path) == "ordering":
        return path.parent.name == "ordering" and path.stem in PURE_ORDERING
    if room(path) == "sequencer":
        return path.stem not in ("service", "sites_file", "history")
    if room(path) == "placement":
        return path.stem != "search"  # it draws lots, which depend on its seed only
    return room(path) in {"errors", "model", "protocol"}


def imported(path: Path) -> set[str]:
    """Full names of the modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            module = node.module or ""
            found.add(module)
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def impurities(tree: ast.Module) -> set[str]:
    """What in a file reads the clock, or reaches the world without an import."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_FUNCTIONS:
                found.add(name)
            case ast.Call(func=ast.Attribute(attr=name) as func) if name in IMPURE_ATTRIBUTES:
                found.add(ast.unparse(func))
            case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=name) if (
                name in IMPURE_ATTRIBUTES
            ):
                found.add(ast.unparse(node))
            case ast.Attribute(value=ast.Name(id="sys"), attr=name) if name != "intern":
                found.add(ast.unparse(node))
    return found


@pytest.mark.parametrize(
    "path", [p for p in FILES if is_pure(p)], ids=lambda p: str(p.relative_to(SRC))
)
def test_purity(path: Path) -> None:
    names = imported(path)
    assert not any(name.startswith(IMPURE_BROKER) for name in names)
    assert not {name.split(".")[0] for name in names} & IMPURE
    assert not any(name.startswith("motet.runtime") for name in names)
    assert not impurities(ast.parse(path.read_text()))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from datetime import datetime\nat = datetime.now()", {"datetime.now"}),
        ("import datetime\nat = datetime.datetime.utcnow()", {"datetime.datetime.utcnow"}),
        ("from datetime import date\nclock = date.today", {"date.today"}),
        ("from datetime import datetime as Day\nat = Day.now()", {"Day.now"}),
        ("text = open('file').read()", {"open"}),
        ("import sys\nwords = sys.argv", {"sys.argv"}),
        ("import sys\nname = sys.intern('name')", set()),
        ("def step(self, now):\n    self.bus.now = now", set()),
    ],
)
def test_what_reaches_the_world_is_found(text: str, found: set[str]) -> None:
    assert impurities(ast.parse(text)) == found


@pytest.mark.parametrize("module", ["time", "pathlib", "os", "random", "socket"])
def test_an_import_that_reaches_the_world_is_found(module: str, tmp_path: Path) -> None:
    for text in (f"import {module}", f"from {module} import anything"):
        (tmp_path / "impure.py").write_text(text)
        assert {name.split(".")[0] for name in imported(tmp_path / "impure.py")} & IMPURE


def test_only_the_local_overlay_lets_clients_see_brokers() -> None:
    for path in FILES:
        if room(path) == "client" and path.stem != "local":
            assert not any(name.startswith("motet.broker") for name in imported(path)), path


def test_durable_state_never_sees_soft_state() -> None:
    """A journaled step reads nothing soft: no module that a durable room imports, directly or
    through other modules of its protocol, holds soft state."""
    soft = {
        "motet.broker.core.broker",
        "motet.protocol.shared",
        "motet.protocol.link.machine.Link",
        *(f"motet.protocol.{path.parent.name}.soft" for path in SRC.glob("protocol/*/soft.py")),
    }
    reached = sorted(SRC.glob("protocol/*/durable.py"))
    assert len(reached) > 5
    for path in reached:
        names = imported(path)
        assert not names & soft, path
        for module in sorted(names):
            other = SRC.parent / Path(*module.split(".")).with_suffix(".py")
            if other.parent.parent == SRC / "protocol" and other.exists() and other not in reached:
                reached.append(other)


def test_only_testing_cli_and_chaos_import_testing() -> None:
    for path in FILES:
        if room(path) not in {"testing", "cli", "chaos"}:
            assert not any(name.startswith("motet.testing") for name in imported(path)), path


API = ("motet.client", "motet.client.sync", "motet.client.logs")
"""The packages that an application imports; their `__all__` has the names."""
LOG_MODULES = tuple(f"motet.client.logs.{name}" for name in ("reader", "query", "stage"))
"""What the card of `motet.client.logs` describes, for programs such as Spark that read logs and
write into sinks in parts."""
ON_THE_API = [*(SRC / "spark").rglob("*.py"), *(LABS / "demo").rglob("*.py")]


@pytest.mark.parametrize("path", ON_THE_API, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_spark_and_the_demo_use_the_public_client(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("motet.client") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("motet.client."):
            assert node.module in (*API, *LOG_MODULES), f"{node.module} is internal to the client"
            module = import_module(node.module)
            public = getattr(module, "__all__", [name for name in vars(module) if name[0] != "_"])
            for alias in node.names:
                assert alias.name in public, f"{node.module}.{alias.name} is not public"
