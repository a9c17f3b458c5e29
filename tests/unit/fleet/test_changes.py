"""Which changes a running overlay can make, and which it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from motet.broker.overlay.topology import BrokerPlace, Topology
from motet.errors import TopologyError
from motet.fleet.supervisor import OverlayChange, change_between


def tree(*edges: str, **elsewhere: int) -> Topology:
    """`B2-B1`: B2 dials B1. Ports follow the names, unless one is moved."""
    links: dict[str, list[str]] = {}
    for edge in edges:
        dialler, _, other = edge.partition("-")
        links.setdefault(other or dialler, [])
        if other:
            links.setdefault(dialler, []).append(other)
    places = tuple(
        BrokerPlace(name, f"motet://h:{elsewhere.get(name, 7000 + int(name[1:]))}", tuple(others))
        for name, others in sorted(links.items())
    )
    return Topology("test", places, source="new.toml")


LINE = tree("B2-B1", "B3-B2")


@pytest.mark.parametrize(
    ("new", "change"),
    [
        (LINE, OverlayChange((), (), (), ())),
        (tree("B2-B1", "B3-B2", "B4-B3"), OverlayChange((), ("B4",), (), ("B3",))),
        (tree("B2-B1", "B3-B2", "B3-B4"), OverlayChange((), ("B4",), (), ("B3",))),
        (
            tree("B2-B1", "B3-B2", "B4-B3", "B5-B4"),
            OverlayChange((), ("B4", "B5"), (), ("B3",)),
        ),
        (tree("B2-B1"), OverlayChange(("B3",), (), (), ("B2",))),
        (tree("B1"), OverlayChange(("B3", "B2"), (), (), ("B1",))),
        (tree("B2-B1", "B4-B2"), OverlayChange(("B3",), ("B4",), (), ("B2",))),
        (tree("B2-B1", "B3-B2", B2=9), OverlayChange((), (), ("B2",), ("B3",))),
        (tree("B1-B2", "B3-B2"), OverlayChange((), (), (), ("B1", "B2"))),
    ],
    ids=[
        "nothing",
        "a leaf that dials",
        "a leaf that is dialled",
        "two at once",
        "a leaf less",
        "two leaves less",
        "one for another",
        "another address",
        "the other one dials",
    ],
)
def test_a_topology_change_lists_the_brokers_to_restart_and_inform(
    new: Topology, change: OverlayChange
) -> None:
    assert change_between(LINE, new) == change


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (tree("B2-B1", "B3-B1"), "the link B3–B2 is gone, but both brokers stay"),
        (tree("B3-B1"), "brokers.B2: cannot be removed .* not a leaf, B1 and B3 are linked"),
        (
            tree("B2-B1", "B9-B2", "B3-B9"),
            "brokers.B9: cannot be added .* not a leaf, B2 and B3 are linked through it",
        ),
        (tree("B8-B9"), "none of them is running"),
        (replace(LINE, lease_s=1.0), "overlay.lease_s: is 30.0 .* cannot become 1.0"),
        (replace(LINE, covering=True), "overlay.covering"),
        (replace(LINE, outbox_bound=5), "overlay.outbox_bound"),
    ],
)
def test_changes_that_a_running_overlay_refuses(new: Topology, why: str) -> None:
    with pytest.raises(TopologyError, match=f"new.toml: .*{why}"):
        change_between(LINE, new)
