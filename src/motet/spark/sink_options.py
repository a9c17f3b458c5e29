"""What can be said with `option` of a sink, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from motet.errors import MisuseError
from motet.model import EVERYTHING, Filter
from motet.model.limits import MAX_CLIENT_ID_CHARS
from motet.spark.options import TIMEOUT_S, Reading

NAMES: Final = ("brokers", "sink", "advertise", "onNewQuery", "key", "timeout")
OF_SPARK: Final = ("checkpointLocation", "path", "queryName")
"""Spark hands these over, too."""


class SinkOptions(Struct, frozen=True):
    home: str
    sink: str
    advertised: Filter
    takeover: bool
    key: str
    timeout_s: float


def sink_options_in(written: Mapping[str, str]) -> SinkOptions:
    options = Reading(written, NAMES, OF_SPARK)
    homes = options.listed("brokers")
    if len(homes) != 1:
        raise MisuseError(
            'a sink has one home: write .option("brokers", "motet://host:port") with one address'
        )
    sink = options.text("sink")
    if not sink:
        raise MisuseError('which sink? Write .option("sink", "a name that is its own")')
    if len(sink) > MAX_CLIENT_ID_CHARS or not sink.isprintable():
        raise MisuseError(f"a sink is named by 1 to {MAX_CLIENT_ID_CHARS} printable characters")
    advertise = options.text("advertise")
    return SinkOptions(
        home=homes[0],
        sink=sink,
        advertised=Filter.parse(advertise) if advertise else EVERYTHING,
        takeover=options.chosen("onNewQuery", "takeover", "fail"),
        key=options.text("key"),
        timeout_s=options.seconds("timeout", TIMEOUT_S),
    )
