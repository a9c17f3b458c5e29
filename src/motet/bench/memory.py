"""How large a broker with very many subscriptions is: a real core, in a process of its own."""

from __future__ import annotations

import json
import os
import random
import sys
import time

from motet.bench import stand
from motet.bench.figures import Figure
from motet.broker.config import BrokerConfig
from motet.broker.core import BrokerCore
from motet.model import Filter, OpId
from motet.protocol.contract import Received
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.messages import Control, LinkHello
from motet.protocol.routing.messages import Subscribe

SUBSCRIPTIONS = 1_000_000
CHUNK = 256
SYMBOLS = 10_000
GIB = 1024**3


def measure() -> Figure:
    heard = stand.hear_from("memory", SUBSCRIPTIONS)
    return Figure(
        f"memory of a broker with {SUBSCRIPTIONS:,} subscriptions", heard["gib"], "GiB", None, 4.0
    )


def fill(subscriptions: int) -> BrokerCore:
    """A broker whose one neighbour has made so many subscriptions, all different."""
    core = BrokerCore(BrokerConfig("B1", ("B2",)))
    core.step(Received(1, LinkHello(PROTOCOL_VERSION, "B2", 1, known=0, received=0)), 0.0)
    draw = random.Random(1)
    for start in range(0, subscriptions, CHUNK):
        count = min(CHUNK, subscriptions - start)
        messages = tuple(
            Subscribe(OpId(f"client-{number // 100}", "B2-1", number), _wanted(draw))
            for number in range(start + 1, start + count + 1)
        )
        core.step(Received(1, Control(start + 1, messages)), float(start))
    return core


def _wanted(draw: random.Random) -> Filter:
    """As it comes from the wire, whose bytes it keeps."""
    low = round(draw.uniform(0, 900), 2)
    written = Filter.parse(
        f"symbol = 'SYM{draw.randrange(SYMBOLS)}' and price between {low} and {low + 100} "
        f"and quantity > {draw.randrange(10_000)}"
    )
    return Filter.from_bytes(written.to_bytes())


def main(subscriptions: int) -> None:
    before = stand.rss_bytes(os.getpid())
    began = time.perf_counter()
    core = fill(subscriptions)
    took_s = time.perf_counter() - began
    held = stand.rss_bytes(os.getpid())
    tables = core.status()["tables"]
    assert tables["subscriptions"] == subscriptions, tables
    print(
        json.dumps(
            {
                "gib": held / GIB,
                "bytes_each": (held - before) / subscriptions,
                "us_each": took_s / subscriptions * 1e6,
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
