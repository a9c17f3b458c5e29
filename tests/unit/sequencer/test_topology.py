"""The sequencer of an overlay, in its topology file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from motet.broker.overlay.topology import OrderingPlace, Topology
from motet.errors import TopologyError

BROKERS = """
[brokers.B1]
listen = "127.0.0.1:7701"
[brokers.B2]
listen = "127.0.0.1:7702"
links = ["B1"]
"""


def test_an_overlay_has_a_sequencer_only_if_its_file_says_so() -> None:
    for text in (BROKERS, "ordering = false" + BROKERS):
        without = Topology.parse(text)
        assert (without.ordering, without.ordering_host) == (None, "")
    plain = Topology.parse("ordering = true" + BROKERS)
    assert plain.ordering == OrderingPlace("motet://127.0.0.1:7720", "causal", 10.0, 60.0)
    assert plain.ordering_host == "B1"
    assert Topology.parse('ordering = true\n[overlay]\nroot = "B2"' + BROKERS).ordering_host == "B2"


def test_a_table_has_its_settings_and_comes_back() -> None:
    table = '[ordering]\nlisten = "127.0.0.1:99"\nmode = "pairs"\nlease_s = 2\nkeep_s = 3.5\n'
    made = Topology.parse(table + BROKERS)
    assert made.ordering == OrderingPlace("motet://127.0.0.1:99", "pairs", 2, 3.5)
    assert Topology.parse(made.to_toml()) == made
    assert Topology.parse("[ordering]\n" + BROKERS).ordering == OrderingPlace()


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ('[ordering]\nlisten = "127.0.0.1:7702"', "ordering.listen: .* is taken by B2"),
        ('[ordering]\nlisten = "127.0.0.1:0"', "ordering.listen: .*port 0"),
        ('[ordering]\nmode = "all"', "ordering.mode: is 'all'; choose one of causal, pairs"),
        ("[ordering]\nlease_s = 0.01", "ordering.lease_s: is 0.01; choose from 0.1"),
        ("[ordering]\nkeep_s = 1e9", "ordering.keep_s: is 1000000000.0; choose"),
        ("[ordering]\nmood = 1", "ordering.*mood: is not known here"),
    ],
)
def test_what_is_wrong_is_named(table: str, text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        Topology.parse(table + BROKERS)


def test_an_object_is_checked_like_a_file() -> None:
    line = Topology.line(2)
    assert Topology.line(2, ordering=True).ordering == OrderingPlace()
    assert Topology.line(2, ordering=False).ordering is None
    assert replace(line, ordering=OrderingPlace()).ordering_host == "B1"
    with pytest.raises(TopologyError, match="ordering: is True; give true, false or an"):
        replace(line, ordering=True)  # type: ignore[arg-type]
