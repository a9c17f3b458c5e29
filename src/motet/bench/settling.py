"""One control operation after the other: how long until it is effective, and what it wrote.

    python -m motet.bench.settling FROM_URL TO_URL OPERATIONS [FOLDER …]

An advertiser sits at one end, a subscriber at the other; each subscription travels to the
advertiser and its echo comes back. The folders are those of the brokers on the way: the groups
that their journals synced meanwhile are counted. Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from motet.bench import sample
from motet.broker.facts import FloorRaised
from motet.broker.records import FACT, decode_fact
from motet.broker.recovery import JOURNAL
from motet.client.connecting import connect
from motet.runtime.log.folder import segment_files
from motet.runtime.log.layout import HEADER_BYTES, MILESTONE, RECORD, RECORD_BYTES, payloads_of
from motet.runtime.loop import run, settle_memory

WARM_UP = 10


async def measure(
    from_url: str, to_url: str, operations: int, folders: Sequence[Path]
) -> dict[str, float]:
    times: list[float] = []
    async with (
        connect(to_url, client_id="bench-advertiser") as advertiser,
        connect(from_url, client_id="bench-settling") as subscriber,
    ):
        await advertiser.advertise(sample.SPACE)
        wanted = [f"{sample.SPACE} and number > {number}" for number in range(operations)]
        for each in wanted[:WARM_UP]:
            await (await subscriber.subscribe(each)).unsubscribe()
        settle_memory()
        before = sum(map(commits, folders))
        for each in wanted:
            began = time.perf_counter()
            subscription = await subscriber.subscribe(each)
            times.append((time.perf_counter() - began) * 1e6)
            await subscription.unsubscribe()
        after = sum(map(commits, folders))
    times.sort()
    # Every subscription was followed by its removal.
    return {"p50_us": times[len(times) // 2], "commits": (after - before) / operations / 2}


def commits(folder: Path) -> int:
    """The groups that the journal of a broker has synced so far; the broker may be running. A
    milestone stands before each. Groups that only tell how far clients are with exactly-once events
    do not count: nobody waits for them."""
    count = 0
    for path in segment_files(folder / JOURNAL):
        data, at, counted = path.read_bytes(), HEADER_BYTES, True
        while at < len(data):
            _, length, _, number, kind, flags = RECORD.unpack_from(data, at)
            body, at = (
                data[at + RECORD_BYTES : at + RECORD_BYTES + length],
                at + RECORD_BYTES + length,
            )
            if kind == MILESTONE:
                counted = False
            elif kind == FACT and not counted:
                counted = any(map(_is_awaited, payloads_of(number, flags, body)))
                count += counted
    return count


def _is_awaited(payload: bytes) -> bool:
    return not isinstance(decode_fact(payload).body, FloorRaised)


def main(arguments: Sequence[str]) -> None:
    from_url, to_url, operations, *folders = arguments
    figures = run(measure(from_url, to_url, int(operations), [Path(each) for each in folders]))
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
