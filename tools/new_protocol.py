"""What a new protocol costs: a toy is added to a copy of the repository.

    python -m tools.new_protocol [FOLDER]    # makes the copy there, prints the files that changed

Notes: a client leaves a note (a message), which is kept with its session (facts, state that moves
with the session) and read back to it once, after a while (a timer). Its new files are in
`tools/toy`, at the places that they have in the repository; `ROWS` has the edits of existing files.
`make house` prints how many these are, `tests/tidy/test_new_protocol.py` runs the toy's tests and
those that compare all protocols.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.source import ROOT

TOY = ROOT / "tools" / "toy"
COPIED = ("src", "labs", "tests", "tools", "docs", "pyproject.toml", "constraints.txt")

ROWS = {
    "src/motet/protocol/frames.py": (
        ("    LinkFrame\n    |", "    NoteFrame\n    | LinkFrame\n    |"),
        (
            "from motet.protocol.reading.messages",
            "from motet.protocol.notes.messages import NoteFrame\n"
            "from motet.protocol.reading.messages",
        ),
    ),
    "src/motet/broker/core/protocols.py": (
        (
            "PROTOCOLS: tuple[BrokerProtocol, ...] = (\n",
            "PROTOCOLS: tuple[BrokerProtocol, ...] = (\n"
            "    BrokerProtocol(\n"
            "        get_args(NoteFact),\n"
            "        (DurableNotes, lambda d: DurableNotes(d)),\n"
            "        (SoftNotes, lambda b: SoftNotes(b.shared, b.durable.room(DurableNotes))),\n"
            "    ),\n",
        ),
        (
            "from motet.protocol.room import",
            "from motet.protocol.notes.durable import DurableNotes\n"
            "from motet.protocol.notes.facts import NoteFact\n"
            "from motet.protocol.notes.soft import SoftNotes\n"
            "from motet.protocol.room import",
        ),
    ),
    "src/motet/testing/words.py": (
        (
            "    return repr(frame)\n",
            "        case notes.LeaveNote(text, after_s):\n"
            '            return f"note to be read in {after_s:g} s: {text}"\n'
            "        case notes.Note(text):\n"
            '            return f"note: {text}"\n'
            "    return repr(frame)\n",
        ),
        (
            "from motet.protocol.routing import messages",
            "from motet.protocol.notes import messages as notes\n"
            "from motet.protocol.routing import messages",
        ),
    ),
    "tools/rooms.py": (
        (
            '    "protocol/reading": ',
            '    "protocol/notes": "protocol",\n    "protocol/reading": ',
        ),
    ),
}
"""Replacements, by existing file. The map of rooms in the docs is written by a program."""


def add_to(tree: Path) -> None:
    """Add the toy to a copy of the repository."""
    shutil.copytree(TOY, tree, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name, rows in ROWS.items():
        text = (tree / name).read_text()
        for before, after in rows:
            assert text.count(before) == 1, f"{name}: {before!r}"
            text = text.replace(before, after)
        (tree / name).write_text(text)
    words = [sys.executable, "-m", "tools.rooms", "--write"]
    subprocess.run(words, cwd=tree, env=surroundings(tree), check=True)


def copy_to(tree: Path) -> None:
    """Copy what a protocol could change, and its tests need."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, tree / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tree / name)


def surroundings(tree: Path) -> dict[str, str]:
    """The environment of a program that uses this tree."""
    path = os.pathsep.join(str(tree / name) for name in ("src", "labs", ""))
    return os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def changed_in(tree: Path) -> list[str]:
    """Files of the repository that differ in the copy."""
    found = []
    for name in COPIED:
        top = ROOT / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                other = tree / path.relative_to(ROOT)
                if not other.exists() or other.read_bytes() != path.read_bytes():
                    found.append(str(path.relative_to(ROOT)))
    return found


def touched() -> list[str]:
    """The existing files that change when the toy is added."""
    with tempfile.TemporaryDirectory() as folder:
        copy_to(Path(folder))
        add_to(Path(folder))
        return changed_in(Path(folder))


def main() -> None:
    if sys.argv[1:]:
        tree = Path(sys.argv[1])
        tree.mkdir()
        copy_to(tree)
        add_to(tree)
        print("\n".join(changed_in(tree)))
    else:
        print("\n".join(touched()))


if __name__ == "__main__":
    main()
