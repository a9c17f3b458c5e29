"""Writes `frames.json`: every frame and every fact of commit f894ba4, as bytes.

Works only with the source of that commit, like `write.py`:

    PYTHONPATH=/tmp/f894ba4/src python tests/golden/write_frames.py

Examples are made from the types of the fields, so that each alternative of each union (a kind of
request, of control message, of step …) occurs at least once, with values that are no defaults.
"""
# ruff: noqa: I001 - imports of modules that have moved since

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import inspect

from motet.broker.facts import FactBody
from motet.broker.records import encode as encode_fact
from motet.model import Filter, encode_event
from motet.protocol.contract import Fact
from motet.protocol.frames import Frame
from motet.runtime.codec import decode, encode

HERE = Path(__file__).parent
FILTERS = ("step > 0 and who = 'alice'", "true", "level >= 1.5 or moved is not null")


class Examples:
    """Values for a type. Numbers and texts count on, so that no two are the same."""

    def __init__(self) -> None:
        self._made = 0
        self._open: list[type] = []

    def of(self, kind: inspect.Type) -> list[Any]:
        make = getattr(self, f"_{type(kind).__name__}")
        return list(make(kind))

    def _next(self) -> int:
        self._made += 1
        return self._made

    def _NoneType(self, _: Any) -> list[Any]:
        return [None]

    def _BoolType(self, _: Any) -> list[Any]:
        return [True]

    def _IntType(self, _: Any) -> list[Any]:
        return [self._next()]

    def _FloatType(self, _: Any) -> list[Any]:
        return [self._next() + 0.5]

    def _StrType(self, _: Any) -> list[Any]:
        return [f"text-{self._next()}"]

    def _BytesType(self, _: Any) -> list[Any]:
        return [b"bytes-%d" % self._next()]

    def _AnyType(self, _: Any) -> list[Any]:
        return [{"any": self._next()}]

    def _RawType(self, _: Any) -> list[Any]:
        body = encode_event({"step": self._next(), "who": "alice"}, b"payload")
        return [msgspec.Raw(bytes(body))]

    def _LiteralType(self, kind: inspect.LiteralType) -> list[Any]:
        return list(kind.values)

    def _CustomType(self, kind: inspect.CustomType) -> list[Any]:
        assert kind.cls is Filter
        return [Filter.parse(text) for text in FILTERS]

    def _UnionType(self, kind: inspect.UnionType) -> list[Any]:
        return [value for each in reversed(kind.types) for value in self.of(each)]

    def _ListType(self, kind: inspect.ListType) -> list[Any]:
        return [self.of(kind.item_type)]

    def _VarTupleType(self, kind: inspect.VarTupleType) -> list[Any]:
        return [tuple(self.of(kind.item_type))]

    def _TupleType(self, kind: inspect.TupleType) -> list[Any]:
        return self._rows([self.of(each) for each in kind.item_types])

    def _DictType(self, kind: inspect.DictType) -> list[Any]:
        values = self.of(kind.value_type)
        return [{self.of(kind.key_type)[0]: value for value in values}]

    def _NamedTupleType(self, kind: inspect.NamedTupleType) -> list[Any]:
        return [kind.cls(*row) for row in self._rows([self.of(f.type) for f in kind.fields])]

    def _StructType(self, kind: inspect.StructType) -> list[Any]:
        if kind.cls in self._open:
            return []
        self._open.append(kind.cls)
        rows = self._rows([self.of(field.type) for field in kind.fields])
        self._open.pop()
        return [kind.cls(*row) for row in rows]

    def _rows(self, columns: list[list[Any]]) -> list[tuple[Any, ...]]:
        """As many as the longest column has; the others repeat."""
        longest = max((len(column) for column in columns), default=1)
        return [tuple(column[n % len(column)] for column in columns) for n in range(longest)]


def main() -> None:
    frames = []
    for kind in get_args(Frame):
        for frame in Examples().of(inspect.type_info(kind)):
            body = encode(frame)
            assert encode(decode(body)) == body, frame
            frames.append({"type": kind.__name__, "bytes": body.hex()})
    facts = []
    for kind in get_args(FactBody):
        for fact in Examples().of(inspect.type_info(kind)):
            facts.append({"type": kind.__name__, "bytes": encode_fact(Fact(0.5, fact)).hex()})
    print(Counter(each["type"] for each in frames + facts))
    found = {"frames": frames, "facts": facts}
    (HERE / "frames.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
