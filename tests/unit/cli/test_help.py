"""Help pages show every word of their texts, filled to the width of the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from itertools import pairwise
from typing import Any

import pytest
import typer

from motet.cli.main import WIDEST, app, run

WIDTHS = (80, WIDEST)
MARGIN = 2
VERBATIM = "\b\n"
"""Before a paragraph whose lines stay as they are."""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))
every_page = pytest.mark.parametrize(
    ("path", "width"),
    [(path, width) for path in COMMANDS for width in WIDTHS],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)


def dense(text: str) -> str:
    """Without spaces and line breaks: a page may break lines anywhere, even behind a hyphen."""
    return re.sub(r"\s+", "", text)


def paragraphs(command: Any) -> list[str]:
    return cleandoc(command.help).split("\n\n")


def page(path: tuple[str, ...], width: int, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        assert run([*path, "--help"]) == 0
    return capsys.readouterr().out


@every_page
def test_no_text_of_a_help_page_is_lost(
    path: tuple[str, ...], width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS[path]
    shown = dense(page(path, width, capsys))
    for paragraph in paragraphs(command):
        assert dense(paragraph.removeprefix(VERBATIM)) in shown
    for parameter in command.params:
        if parameter.hidden:
            continue
        assert parameter.help, f"{parameter.name} has no help text"
        assert dense(parameter.help) in shown
        if isinstance(parameter.show_default, str):
            assert dense(f"default: ({parameter.show_default})") in shown
    for name, each in getattr(command, "commands", {}).items():
        summary = paragraphs(each)[0].removesuffix(".")
        assert dense(name + summary) in shown, "the summary is too long for the list of commands"


@every_page
def test_paragraphs_are_filled_once(
    path: tuple[str, ...], width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line break of the source is a space on the page; lines break where the page ends."""
    lines = page(path, width, capsys).splitlines()
    assert max(map(len, lines)) <= width
    for paragraph in paragraphs(COMMANDS[path]):
        if paragraph.startswith(VERBATIM):
            for line in paragraph.removeprefix(VERBATIM).splitlines():
                assert " " * MARGIN + line in lines
            continue
        begin = next(
            n for n, line in enumerate(lines) if line.strip() and is_start(line, paragraph)
        )
        end = next((n for n in range(begin, len(lines)) if not lines[n].strip()), len(lines))
        for line, following in pairwise(lines[begin:end]):
            would_be = len(line) + 1 + len(following.split()[0])
            assert would_be > width - MARGIN, f"{line!r} breaks too early"


def is_start(line: str, paragraph: str) -> bool:
    return " ".join(paragraph.split()).startswith(line.strip())


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_defaults_are_given_as_defaults(path: tuple[str, ...]) -> None:
    """A text in brackets at the end of a help text looks like a default, but some renderers take it
    for markup and drop it."""
    for parameter in COMMANDS[path].params:
        assert not re.search(r"\[[^]]*\]\.?$", parameter.help or ""), parameter.name


def test_only_a_plan_is_aborted_by_its_timeout() -> None:
    """Asking for an outcome in vain changes nothing."""
    told = {name: COMMANDS["tx", name].params for name in ("plan", "outcome")}
    texts = {
        name: next(each.help for each in params if each.name == "timeout")
        for name, params in told.items()
    }
    assert texts["plan"].startswith("Abort")
    assert "does not affect the transaction" in texts["outcome"]
