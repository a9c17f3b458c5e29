"""Frames and facts that commit f894ba4 encoded are understood; frames are still encoded like that,
apart from fields that are new at the end of a struct: older peers ignore them.

`tests/golden/write_frames.py` made them: every kind of frame and fact, each alternative of each
union once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from motet.broker.core.records import decode_fact
from motet.model.filters import to_wire
from motet.protocol.frames import Frame
from motet.runtime.codec import decode, encode

GOLDEN: dict[str, list[dict[str, str]]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "frames.json").read_text()
)


GROWN = {"Control", "Outline"}
"""Frames with structs that have new fields."""


@pytest.mark.parametrize("number", range(len(GOLDEN["frames"])))
def test_a_frame_is_decoded_to_the_same_content_and_encoded_to_the_same_bytes(number: int) -> None:
    told = GOLDEN["frames"][number]
    body = bytes.fromhex(told["bytes"])
    frame = decode(body)
    before, now = msgspec.msgpack.decode(body), msgspec.msgpack.decode(encode(frame))
    if told["type"] in GROWN:
        assert encode(frame) != body
        assert _cut(now, before) == before, told["type"]
    else:
        assert encode(frame) == body, told["type"]
    plain = msgspec.to_builtins(frame, enc_hook=_as_wire, builtin_types=(bytes,))
    assert _cut(_lists(plain), before) == before, told["type"]


def test_every_kind_of_frame_has_a_tag_that_the_golden_ones_have() -> None:
    """A frame that is new belongs to no golden file; one that is gone would break old peers."""
    old = {msgspec.msgpack.decode(bytes.fromhex(each["bytes"]))[0] for each in GOLDEN["frames"]}
    now = {kind.__struct_config__.tag for kind in get_args(Frame)}
    assert old <= now


@pytest.mark.parametrize("number", range(len(GOLDEN["facts"])))
def test_a_fact_is_decoded(number: int) -> None:
    told = GOLDEN["facts"][number]
    assert decode_fact(bytes.fromhex(told["bytes"])).now == 0.5


def _cut(now: Any, before: Any) -> Any:
    """Without what has been added at the end of lists."""
    if isinstance(now, list) and isinstance(before, list):
        return [_cut(*pair) for pair in zip(now, before, strict=False)]
    return now


def _as_wire(value: object) -> object:
    if isinstance(value, msgspec.Raw):
        return msgspec.msgpack.decode(value)
    return to_wire(value)


def _lists(plain: object) -> object:
    if isinstance(plain, tuple | list):
        return [_lists(each) for each in plain]
    if isinstance(plain, dict):
        return {name: _lists(value) for name, value in plain.items()}
    return plain
