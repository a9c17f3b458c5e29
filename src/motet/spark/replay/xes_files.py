"""XES, read strictly: anything outside the standard is refused with its line number.

Spark's reader looks for `<trace>` and ignores the rest: unclosed traces, invalid values, nested
attributes. So tasks use this reader instead, one file each, a trace at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.parsers import expat

from motet.errors import MisuseError
from motet.model.limits import INT_MAX, INT_MIN
from motet.spark.replay import kinds
from motet.spark.replay.files import opened
from motet.spark.replay.kinds import LIKE, time_of

CASE: Final = "case:"
"""Prefix of the names of a trace's attributes."""
WITHIN: Final = ":"
"""Separates the name of an attribute from that of one nested in it."""
CHUNK_BYTES: Final = 1 << 16
DEEPEST: Final = 64
_ATTRIBUTES: Final = frozenset(
    ("string", "date", "int", "float", "boolean", "id", "list", "container")
)
_APART: Final = frozenset(("extension", "global", "classifier"))
"""Other elements of a log; they say nothing about any event."""
_WITHIN: Final = {
    "": frozenset(("log",)),
    "log": _ATTRIBUTES | _APART | {"trace", "event"},
    "trace": _ATTRIBUTES | {"event"},
    "event": _ATTRIBUTES,
    "list": _ATTRIBUTES | {"values"},
    "values": _ATTRIBUTES,
    **dict.fromkeys(_ATTRIBUTES - {"list"}, _ATTRIBUTES),
}
"""Which elements may contain which."""
_INT: Final = re.compile(r"[+-]?\d+", re.ASCII)
_FLOAT: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_FLOATS: Final = {"INF": float("inf"), "-INF": float("-inf"), "NaN": float("nan")}
_BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}


class Valued(NamedTuple):
    """An attribute of an event."""

    kind: str
    """See `motet.spark.replay.kinds`."""
    value: Any
    """Times in microseconds."""
    is_cut: bool = False


Row = dict[str, Valued]


class _Element:
    __slots__ = ("children", "key", "line", "tag", "value")

    def __init__(self, tag: str, line: int, key: str = "", value: str | None = None) -> None:
        self.tag, self.line, self.key, self.value = tag, line, key, value
        self.children: list[_Element] = []


def rows_of(path: Path) -> Iterator[tuple[int, Row]]:
    """The line of each event, and its attributes, including those of its trace."""
    with opened(path) as file:
        reader = _Reader(path)
        while data := file.read(CHUNK_BYTES):
            yield from reader.feed(data)
        yield from reader.feed(b"", at_end=True)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._stack: list[_Element] = []
        self._space = ""
        self._apart = 0
        """Depth inside an element that belongs to no event."""
        self._rows: list[tuple[int, Row]] = []

    def feed(self, data: bytes, at_end: bool = False) -> list[tuple[int, Row]]:
        try:
            self._parser.Parse(data, at_end)
        except expat.ExpatError as problem:
            if at_end:
                raise MisuseError(
                    f"{self._path} is truncated: it ends in line {problem.lineno}, before </log>"
                ) from None
            what = expat.errors.messages[problem.code]
            raise MisuseError(
                f"{self._path}, line {problem.lineno}, column {problem.offset + 1}: invalid XML "
                f"({what}); check also the encoding that its first line names"
            ) from None
        except (ValueError, LookupError) as problem:  # unknown or multi-byte encodings
            raise MisuseError(f"{self._path}: {problem}; save the file as UTF-8") from None
        rows, self._rows = self._rows, []
        return rows

    def _fail(self, problem: str, line: int | None = None) -> MisuseError:
        at = self._parser.CurrentLineNumber if line is None else line
        return MisuseError(f"{self._path}, line {at}: {problem}")

    # ── the parser's callbacks ───────────────────────────────────────────────────────────

    def _doctype(self, *_: object) -> None:
        raise self._fail("XES has no <!DOCTYPE>, and external entities are not read; remove it")

    def _text(self, text: str) -> None:
        if text.strip() and not self._apart:
            raise self._fail(f"text between elements, {text.strip()[:40]!r}, is not allowed in XES")

    def _start(self, name: str, said: dict[str, str]) -> None:
        if self._apart:
            self._apart += 1
            return
        space, _, tag = name.rpartition(" ")
        if not self._stack:
            if tag != "log":
                raise self._fail(f"the root is <{tag}>, but XES has the root <log>")
            self._space = space
        within = self._stack[-1].tag if self._stack else ""
        if tag not in _WITHIN[within] or space != self._space:
            raise self._fail(f"<{tag}> in <{within}> is not allowed in XES")
        if len(self._stack) > DEEPEST:
            raise self._fail(f"<{tag}> is nested deeper than {DEEPEST} times")
        if tag in _APART or (within == "log" and tag in _ATTRIBUTES):
            self._apart = 1
            return
        self._stack.append(self._element(tag, said))

    def _element(self, tag: str, said: dict[str, str]) -> _Element:
        line = self._parser.CurrentLineNumber
        if tag not in _ATTRIBUTES:
            return _Element(tag, line)
        key, value = said.get("key"), said.get("value")
        if not key:
            raise self._fail(f"a <{tag}> has no key")
        if value is None and tag not in ("list", "container"):
            raise self._fail(f"<{tag}> {key!r} has no value")
        return _Element(tag, line, key, value)

    def _end(self, _: str) -> None:
        if self._apart:
            self._apart -= 1
            return
        ended = self._stack.pop()
        if ended.tag == "trace":
            self._take(ended)
        elif ended.tag == "event" and self._stack[-1].tag == "log":
            self._rows.append((ended.line, self._flat(ended, "")))
        elif self._stack and self._stack[-1].tag != "log":
            self._stack[-1].children.append(ended)

    # ── rows ─────────────────────────────────────────────────────────────────────────────

    def _take(self, trace: _Element) -> None:
        events = [each for each in trace.children if each.tag == "event"]
        trace.children = [each for each in trace.children if each.tag != "event"]
        of_trace = self._flat(trace, CASE)
        for event in events:
            row = self._flat(event, "")
            both = next((name for name in row if name in of_trace), None)
            if both is not None:
                raise self._fail(
                    f"an event and its trace both have an attribute {both!r}", event.line
                )
            self._rows.append((event.line, row | of_trace))

    def _flat(self, parent: _Element, before: str) -> Row:
        """All attributes by name; the name of a nested one is prefixed with its parent's."""
        row: Row = {}
        waiting = [(before, each) for each in reversed(parent.children)]
        while waiting:
            before, each = waiting.pop()
            name, nested = before + each.key, each.children
            if name in row:
                raise self._fail(f"the attribute {name!r} occurs twice", each.line)
            if each.tag in ("list", "container"):
                held = [child for child in nested if child.tag == "values"]
                items = [item for child in held for item in child.children] if held else nested
                nested = [child for child in nested if child.tag != "values"] if held else []
                told = [self._item(item) for item in items]
                row[name] = Valued(kinds.TEXT, json.dumps(told, ensure_ascii=False))
            else:
                row[name] = self._valued(each)
            waiting += [(name + WITHIN, child) for child in reversed(nested)]
        return row

    def _item(self, element: _Element) -> dict[str, Any]:
        """An item of a list as JSON: keys may repeat, and the order of items matters."""
        nested = [
            item
            for child in element.children
            for item in (child.children if child.tag == "values" else [child])
        ]
        told: dict[str, Any] = {"key": element.key}
        if element.value is not None and element.tag not in ("list", "container"):
            valued = self._valued(element)
            is_time = valued.kind in (kinds.LOCAL, kinds.ZONED)
            told["value"] = element.value.strip() if is_time else valued.value
        if nested:
            told["attributes"] = [self._item(child) for child in nested]
        return told

    def _valued(self, element: _Element) -> Valued:
        text = element.value or ""
        if element.tag in ("string", "id"):
            return Valued(kinds.TEXT, text)
        text = text.strip()
        match element.tag:
            case "int":
                if _INT.fullmatch(text) and len(text) <= 40 and INT_MIN <= int(text) <= INT_MAX:
                    return Valued(kinds.INT, int(text))
            case "float":
                if text in _FLOATS:
                    return Valued(kinds.FLOAT, _FLOATS[text])
                if _FLOAT.fullmatch(text) and isfinite(float(text)):
                    return Valued(kinds.FLOAT, float(text))
            case "boolean":
                if text.lower() in _BOOLS:
                    return Valued(kinds.BOOL, _BOOLS[text.lower()])
            case "date":
                time = time_of(text)
                if time is not None:
                    kind = kinds.ZONED if time.is_zoned else kinds.LOCAL
                    return Valued(kind, time.us, time.is_cut)
        like = f"; a date is like {LIKE}" if element.tag == "date" else ""
        raise self._fail(
            f"{text[:80]!r} of {element.key!r} is not a valid {element.tag} value{like}",
            element.line,
        )
