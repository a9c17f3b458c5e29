"""How often a micro-batch asks the brokers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import motet
from motet.client.channel import RequestChannel
from motet.spark.source import MotetSource
from tests.spark.ground import Desk, Pair
from tests.waiting import wait_until

BROKERS = 2


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests by kind."""
    counts: Counter[str] = Counter()
    ask = RequestChannel.ask

    async def counted(self: RequestChannel, request: Any, expected: Any) -> Any:
        counts[type(request).__name__] += 1
        return await ask(self, request, expected)

    monkeypatch.setattr(RequestChannel, "ask", counted)
    return counts


def wait_for(desk: Desk, events: int) -> None:
    """Until so many are in the logs: those of a transaction come a little later elsewhere."""

    def arrived() -> int:
        logs = [motet.read_sync(url, filter=desk.filter) for url in desk.urls.split(",")]
        return sum(len(batch) for log in logs for batch in log)

    wait_until(lambda: arrived() >= events)


@pytest.mark.parametrize("cursor", ["", "nightly"])
def test_a_micro_batch_asks_each_broker_once(cursor: str, desk: Desk, asked: Counter[str]) -> None:
    """Once for its account and once for its outline; then one read for each slice."""
    options = {"brokers": desk.urls, "columns": "n:int,transaction", "startingPosition": "latest"}
    source = MotetSource(options | ({"cursor": cursor} if cursor else {}))
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    for number in range(BROKERS):
        desk.publish(number, range(10))
    name = desk.transact(range(10, 16))
    wait_for(desk, events=26)
    asked.clear()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    slices = reader.partitions(start, end)
    rows = [row for each in slices for batch in reader.read(each) for row in batch.to_pylist()]
    reader.commit(end)
    reader.stop()
    found = sorted((row["n"] - desk.base, row["transaction"]) for row in rows)
    alone = [(n, None) for n in range(10) for _ in range(BROKERS)]
    assert found == [*alone, *((n, name) for n in range(10, 16))]
    expected = {"DescribeRequest": BROKERS, "OutlineRequest": BROKERS, "ReadRequest": BROKERS}
    assert asked == expected | ({"CursorRequest": BROKERS} if cursor else {})


def test_a_batch_of_a_checkpoint_is_planned_again(busy: Pair, asked: Counter[str]) -> None:
    """Another process has taken its offsets down: nothing is known of what lies between them."""
    options = {"brokers": busy.urls, "columns": "n:int", "startingPosition": "latest"}
    source = MotetSource(options)
    first = source.streamReader(source.schema())
    start = first.initialOffset()
    busy.publish(0, range(10))
    end = first.latestOffset(start, first.getDefaultReadLimit())
    first.stop()
    reader = source.streamReader(source.schema())
    asked.clear()
    (slice,) = reader.partitions(start, end)
    rows = [row for batch in reader.read(slice) for row in batch.to_pylist()]
    reader.stop()
    assert sorted(row["n"] for row in rows) == [*range(10)]
    assert asked["DescribeRequest"] == BROKERS
    assert asked["OutlineRequest"] == 1
