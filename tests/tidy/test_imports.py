"""Imports point downwards only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "motet"

BELOW: dict[str, set[str]] = {
    "errors": set(),
    "pictures": {"errors"},
    "model": {"errors"},
    "matching": {"errors", "model"},
    "protocol": {"errors", "model", "matching"},
    "runtime": {"errors", "model", "protocol"},
    "audit": {"errors", "model"},
    "broker": {"errors", "model", "matching", "protocol", "runtime", "audit"},
    "client": {"errors", "model", "protocol", "runtime", "broker", "audit"},
    "spark": {"errors", "pictures", "model", "matching", "client", "audit"},
    "testing": {"errors", "model", "matching", "protocol", "runtime", "broker", "client", "audit"},
}
"""A room may import itself and what stands here; rooms not listed are on top and import all."""

PURE_BROKER = {
    "account",
    "carrying",
    "config",
    "consequences",
    "core",
    "leaving",
    "pending",
    "reaching",
    "sinking",
    "durable",
    "facts",
    "greeting",
    "image",
    "inquiry",
    "interests",
    "linking",
    "rebuild",
    "records",
    "remembered",
    "router",
    "streams",
    "total_order",
}
"""The part of the broker that must run under the simulator, with all of `cell`: it never sees the
runtime."""

IMPURE = {"asyncio", "socket", "time", "random", "os", "threading", "subprocess", "uuid", "secrets"}
"""What a pure room must never import."""

FILES = sorted(SRC.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def is_pure(path: Path) -> bool:
    if room(path) == "broker":
        return path.stem in PURE_BROKER or path.parent.name == "cell"
    if room(path) == "matching":
        return path.stem != "index"  # which engine to use is asked of the environment, once
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


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_direction(path: Path) -> None:
    here = room(path)
    if here not in BELOW:
        return
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "motet" and len(parts) > 1:
            assert parts[1] in BELOW[here] | {here}, f"{here} must not import {name}"


@pytest.mark.parametrize(
    "path", [p for p in FILES if is_pure(p)], ids=lambda p: str(p.relative_to(SRC))
)
def test_purity(path: Path) -> None:
    names = imported(path)
    assert not {name.split(".")[0] for name in names} & IMPURE
    assert not any(name.startswith("motet.runtime") for name in names)


def test_only_the_local_overlay_lets_clients_see_brokers() -> None:
    for path in FILES:
        if room(path) == "client" and path.stem != "local":
            assert not any(name.startswith("motet.broker") for name in imported(path)), path


def test_durable_state_never_sees_soft_state() -> None:
    """A journaled step reads nothing soft: the modules that hold soft state are out of reach."""
    names: set[str] = set()
    for module in ("durable", "carrying", "facts", "image"):
        names |= imported(SRC / "broker" / f"{module}.py")
    soft = {
        "motet.broker.core",
        "motet.broker.router",
        "motet.broker.inquiry",
        "motet.protocol.link.machine.Link",
        "motet.protocol.link.state.LinkSoft",
    }
    assert not names & soft
    for machine in ("routing", "session", "transactions"):
        for path in (SRC / "protocol" / machine).glob("*.py"):
            assert not any("link" in name for name in imported(path)), path


def test_nothing_imports_testing() -> None:
    for path in FILES:
        if room(path) not in {"testing", "cli", "bench", "demo", "chaos"}:
            assert not any(name.startswith("motet.testing") for name in imported(path)), path
