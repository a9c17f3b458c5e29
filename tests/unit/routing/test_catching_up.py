"""A table that is replayed builds its index later, with the same answers."""

from __future__ import annotations

from random import Random

import pytest

from motet.model import Filter, Hop, OpId
from motet.protocol.routing.state import HopBits, Table

NEIGHBOURS = ("B2", "B3")


def tables() -> tuple[Table, Table]:
    return Table(HopBits(NEIGHBOURS)), Table(HopBits(NEIGHBOURS))


def answers(table: Table, wanted: Filter) -> list[object]:
    found = [table.overlapping(wanted), table.covering(wanted), table.covered(wanted)]
    return [table.overlapping_hops(wanted), *([entry.id for entry in each] for each in found)]


@pytest.mark.parametrize("seed", range(5))
def test_a_table_gives_the_same_answers_during_and_after_catch_up(seed: int) -> None:
    random = Random(seed)
    plain, late = tables()
    with late.catching_up():
        for number in range(1, 200):
            if len(plain) and random.random() < 0.5:
                gone = random.choice(list(plain)).id
                for table in (plain, late):
                    entry = table.get(gone)
                    assert entry is not None
                    table.remove(entry)
            else:
                low = random.randrange(100)
                wanted = Filter.parse(f"x between {low} and {low + 10}")
                source = random.choice([Hop.broker("B2"), Hop.broker("B3"), Hop.client("c")])
                for table in (plain, late):
                    table.add(OpId("c", "B1-1", number), wanted, source)
            if random.random() < 0.1:
                asked = Filter.parse(f"x > {random.randrange(100)}")
                assert answers(late, asked) == answers(plain, asked)
    assert len(late.index) == len(plain.index) == len(plain)
    everything = Filter.parse("true")
    assert answers(late, everything) == answers(plain, everything)
    assert late.index.match({"x": 50}) == plain.index.match({"x": 50})


def test_an_entry_added_and_removed_during_catch_up_is_never_indexed() -> None:
    """Bytes that are no filter at all do no harm if nobody asks what they say."""
    _, table = tables()
    with table.catching_up():
        op = OpId("c", "B1-1", 1)
        entry = table.add(op, Filter.from_own_bytes(b"nonsense"), Hop.client("c"))
        table.remove(entry)
    assert len(table.index) == len(table) == 0
