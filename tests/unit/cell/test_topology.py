"""Cells in topology files."""

from __future__ import annotations

import pytest

from motet.broker.overlay.topology import Topology
from motet.errors import TopologyError
from motet.fleet.supervisor import change_between

TEXT = """
[brokers.p1]
listen = "127.0.0.1:7101"
[brokers.b1]
listen = "127.0.0.1:7102"
links = ["p1"]
mates = { b2 = "127.0.0.1:7103", b3 = "127.0.0.1:7104" }
[brokers.s1]
listen = "127.0.0.1:7105"
links = ["b1"]
"""


def test_a_cell_is_one_broker_of_several_processes() -> None:
    topology = Topology.parse(TEXT)
    assert topology.names == ("p1", "b1", "s1")
    assert [each.name for each in topology.processes] == ["p1", "b1", "b2", "b3", "s1"]
    assert topology.head("b3") == topology.head("b1") == "b1"
    assert Topology.parse(topology.to_toml()) == topology


def test_every_member_dials_every_member() -> None:
    topology = Topology.parse(TEXT)
    assert set(topology.wiring("s1").dial) == {"b1", "b2", "b3"}
    assert set(topology.wiring("b1").dial) == {"p1"}
    assert set(topology.wiring("b2").dial) == {"p1", "b1"}
    assert set(topology.wiring("b3").dial) == {"p1", "b1", "b2"}
    assert topology.wiring("b3").listen == "motet://127.0.0.1:7104"


def test_members_know_their_cell_and_those_next_to_it() -> None:
    topology = Topology.parse(TEXT)
    assert topology.config("s1").cells == {"b1": ("b2", "b3")}
    head, mate = topology.config("b1"), topology.config("b2")
    assert (head.head, head.mates) == ("", ("b2", "b3"))
    assert (mate.head, mate.head_at) == ("b1", "motet://127.0.0.1:7102")
    assert mate.neighbours == head.neighbours == ("p1", "s1")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("b3 =", "s1 ="), "is there twice"),
        (("7104", "7101"), "is taken by"),
        (("b3 =", '"b 3" ='), "is not a name"),
        (("[brokers.p1]", "[overlay]\ncovering = true\n[brokers.p1]"), "mates carry streams"),
    ],
)
def test_an_invalid_topology_of_cells_is_refused(change: tuple[str, str], complaint: str) -> None:
    with pytest.raises(TopologyError, match=complaint):
        Topology.parse(TEXT.replace(*change))


def test_mates_stay_while_the_overlay_runs() -> None:
    fewer = TEXT.replace(', b3 = "127.0.0.1:7104"', "")
    with pytest.raises(TopologyError, match="mates cannot change"):
        change_between(Topology.parse(TEXT), Topology.parse(fewer))
