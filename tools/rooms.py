"""Which rooms there are, and which others each of them may import.

    python -m tools.rooms            # prints the map of rooms
    python -m tools.rooms --write    # writes it into docs/architecture.md

A room is a folder of `src/motet`, or a file there; `labs` is `labs/motet_labs`.
`tests/tidy/test_rooms.py` compares this table with what the source does, and the map with what the
page shows.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.source import ROOT, Source

PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: python -m tools.rooms --write -->", "<!-- end of rooms -->"

MAY_IMPORT: dict[str, str] = {
    # values
    "errors": "",
    "pictures": "errors",
    "model": "errors",
    "cloudevents": "model",
    "matching": "errors model",
    "placement": "errors",
    # protocols: pure; the contract and the changes name types of all of them; a protocol takes
    # messages, facts and state of others, and the soft halves that it is composed with
    "protocol": "errors model protocol/*",
    "protocol/cell": "protocol protocol/delivery protocol/link",
    "protocol/delivery": (
        "errors model protocol protocol/link protocol/routing protocol/session protocol/sinks "
        "protocol/transactions"
    ),
    "protocol/hosted": "errors protocol protocol/mobility protocol/session",
    "protocol/link": (
        "errors model protocol protocol/delivery protocol/mobility protocol/routing "
        "protocol/sequencing protocol/transactions"
    ),
    "protocol/mobility": (
        "errors model protocol protocol/delivery protocol/hosted protocol/link protocol/routing "
        "protocol/session protocol/transactions"
    ),
    "protocol/reading": "model protocol",
    "protocol/routing": (
        "errors matching model protocol protocol/delivery protocol/link protocol/session"
    ),
    "protocol/sequencing": "errors protocol",
    "protocol/session": (
        "errors model protocol protocol/delivery protocol/link protocol/routing protocol/sinks "
        "protocol/transactions"
    ),
    "protocol/sinks": (
        "errors model protocol protocol/delivery protocol/routing protocol/session "
        "protocol/transactions"
    ),
    "protocol/transactions": "errors model protocol protocol/routing protocol/session",
    # the world
    "runtime": "errors model protocol protocol/* runtime/*",
    "runtime/log": "errors",
    "runtime/pubend": "errors model protocol/reading runtime/log",
    "audit": "errors model",
    # the broker
    "broker": "",
    "broker/core": "errors model protocol protocol/* broker/core/cell",
    "broker/core/cell": "errors model protocol protocol/* broker/core",
    "broker/folder": "errors protocol runtime runtime/* broker/core",
    "broker/overlay": (
        "errors model protocol protocol/delivery protocol/sequencing runtime runtime/pubend "
        "broker/folder"
    ),
    "broker/driver": "errors model matching protocol protocol/* runtime runtime/* audit broker/*",
    # one order across topics, over services of others
    "ordering": (
        "errors protocol protocol/sequencing protocol/session runtime audit client client/line "
        "client/session client/sync ordering/services"
    ),
    "ordering/services": "errors model runtime client",
    # the sequencer
    "sequencer": (
        "errors model protocol protocol/link protocol/sequencing runtime runtime/log audit "
        "broker/folder broker/overlay broker/driver"
    ),
    # the client
    "client": (  # brokers only for `local`, see tests/tidy/test_imports.py
        "errors model protocol protocol/* runtime audit client/line client/session "
        "broker/driver broker/overlay hosted sequencer"
    ),
    "client/line": "errors protocol runtime",
    "client/logs": "errors model protocol protocol/* runtime client client/sync",
    "client/session": "errors model protocol protocol/*",
    "client/sync": "errors model client client/session",
    # what is built on the client
    "hosted": (
        "errors model protocol protocol/hosted protocol/session runtime client "
        "client/line client/session broker/overlay broker/driver"
    ),
    "fleet": "errors protocol runtime client broker/folder broker/overlay",
    "spark": "errors model client/logs",
    "spark/archive": "errors model spark",
    "spark/audit": "errors model matching audit",
    "spark/insight": "errors pictures spark spark/archive spark/replay",
    "spark/placement": "errors audit placement",
    "spark/replay": "errors model client spark spark/archive",
    "spark/workload": "errors spark",
    # what convinces us: on top of everything
    "testing": "* but chaos cli labs spark",
    "testing/bugs": "* but chaos cli labs spark",
    "testing/checkers": "* but chaos cli labs spark",
    "testing/ordering": "* but chaos cli labs spark",
    "testing/ordering/checkers": "* but chaos cli labs spark",
    "chaos": "* but labs",
    "cli": "*",
    "labs": "errors matching runtime fleet",
    "labs/bench": "* but cli",
    "labs/demo": "* but cli testing",
    "labs/experiments": "* but cli",
    "__init__": "errors model client client/* broker/overlay ordering",
    "__main__": "cli",
}
"""By room: the others that it may import, beside itself. `x/*` is every room below x, `* but a b`
every room but these and those below them."""


def room_of(relative: Path) -> str:
    parent = relative.parent.as_posix()
    return relative.stem if parent == "." else parent


def may_import(room: str, other: str) -> bool:
    allowed = MAY_IMPORT[room]
    if allowed.startswith("*"):
        refused = allowed.partition(" but ")[2].split()
        return not any(_is_in(other, f"{each}/*") or other == each for each in refused)
    return any(_covers(each, other) for each in allowed.split())


def unused(found: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Permissions, by room, that none of these imports needs: (importing, imported) rooms."""
    pairs = list(found)
    return {
        (room, each)
        for room, allowed in MAY_IMPORT.items()
        if not allowed.startswith("*")
        for each in allowed.split()
        if not any(here == room and _covers(each, there) for here, there in pairs)
    }


def _covers(permission: str, room: str) -> bool:
    return room == permission or _is_in(room, permission)


def _is_in(room: str, pattern: str) -> bool:
    return pattern.endswith("/*") and room.startswith(pattern.removesuffix("*"))


def imports(source: Source) -> dict[tuple[str, str], set[str]]:
    """By importing and imported room: the files that do it."""
    rooms = {source.module(path): room_of(source.relative(path)) for path in source.files}
    found: dict[tuple[str, str], set[str]] = {}
    for path in source.files:
        here = room_of(source.relative(path))
        for name in source.imports(path):
            there = _place(name, rooms)
            if there is not None and there != here:
                found.setdefault((here, there), set()).add(str(source.relative(path)))
    return found


def _place(name: str, rooms: dict[str, str]) -> str | None:
    """The room of a module, or of the module that a name is in."""
    while name and name not in rooms:
        name = name.rpartition(".")[0]
    return rooms.get(name)


# ── the map ──────────────────────────────────────────────────────────────────────────────


def lines(source: Source) -> Iterator[str]:
    yield "| room | what lives here | may import |"
    yield "| --- | --- | --- |"
    for room in sorted(_rooms(source)):
        if not room.startswith("__"):
            yield f"| `{room}` | {_card(source, room)} | {MAY_IMPORT[room] or '–'} |"


def _rooms(source: Source) -> set[str]:
    return {room_of(source.relative(path)) for path in source.files}


def _card(source: Source, room: str) -> str:
    """The first sentence of its docstring."""
    folder = source.path(room)
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = ast.get_docstring(source.trees[path]) or ""
    return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")


def page_with(text: str, source: Source) -> str:
    """The page with the map as it is today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + "\n".join([BEGIN, "", *lines(source), "", END]) + after


def main() -> None:
    source = Source()
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page_with(PAGE.read_text(), source))
    else:
        print("\n".join(lines(source)))


if __name__ == "__main__":
    main()
