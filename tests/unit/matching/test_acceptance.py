"""A broker accepts the events its matcher accepts: both engines must draw the same line, and
draw it where the model does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from motet.errors import MotetError
from motet.matching import create_index
from motet.model import Filter, check_attributes, decode_body
from tests.unit.matching.worlds import ENGINES

GOOD: list[Any] = [
    {},
    {"a.b_1": 1},
    {f"a{i}": i for i in range(256)},
    {"x" * 128: True},
    {"_": -(2**63), "b": 2**63 - 1, "c": 1.5, "d": "é"},
]
BAD: list[Any] = [
    {"": 1},
    {"bad name": 1},
    {".a": 1},
    {"1a": 1},
    {"é": 1},
    {"\x1b[31m": 1},
    {f"a{i}": i for i in range(257)},
    {"x" * 129: True},
    {"a": [1]},
    {"a": {"b": 1}},
    {"a": None},
    {"a": b"x"},
    {"a": 2**63},
    {1: 1},
]


@pytest.mark.parametrize("engine", ENGINES)
def test_invalid_attributes_are_not_matched(engine: str) -> None:
    index = create_index(engine)
    index.add(0, Filter.parse("true"), 0)
    for attributes in GOOD:
        body = msgspec.msgpack.encode([attributes, b"payload"])
        assert index.hops_encoded(body) == 1, attributes
        check_attributes(decode_body(body)[0])
    for attributes in BAD:
        body = msgspec.msgpack.encode([attributes, b"payload"])
        assert index.hops_encoded(body) is None, attributes
        with pytest.raises(MotetError):
            check_attributes(decode_body(body)[0])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x92",
        b"\x92\x80",
        b"\xdc\x00\x02\x80\xc4\x00",  # an array of two, said at length
        b"\x92\x80\xa1x",  # a payload of text
        b"\x92\x80\xc4\x00\x00",  # something behind it
        b"\x92\x81\xa1a\xa2\xff\xff\xc4\x00",  # not UTF-8
    ],
)
def test_an_invalid_body_is_not_matched(engine: str, body: bytes) -> None:
    index = create_index(engine)
    index.add(0, Filter.parse("true"), 0)
    assert index.hops_encoded(body) is None
