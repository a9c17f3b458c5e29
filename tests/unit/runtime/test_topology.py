"""Topology files: what is accepted, and what each bad file is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from motet.broker.overlay.topology import Topology, TopologyOptions, full_address
from motet.client import LocalOptions
from motet.errors import MisuseError, TopologyError
from motet.protocol.delivery.stream import Liveness

EXAMPLE = """
[overlay]
name = "demo"
covering = false
[brokers.B1]
listen = "127.0.0.1:7701"
[brokers.B2]
listen = "127.0.0.1:7702"
links = ["B1"]
"""


def brokers(**links: list[str]) -> str:
    tables = [
        f'[brokers.{name}]\nlisten = "127.0.0.1:{7701 + i}"\nlinks = {other}\n'
        for i, (name, other) in enumerate(links.items())
    ]
    return "".join(tables)


def test_the_example() -> None:
    topology = Topology.parse(EXAMPLE)
    assert topology.name == "demo"
    assert topology.edges == (("B2", "B1"),)
    assert topology.neighbours("B1") == ("B2",)
    assert topology.config("B2").neighbours == ("B1",)
    assert topology.wiring("B1").dial == {}
    assert topology.wiring("B2").dial == {"B1": "motet://127.0.0.1:7701"}
    assert topology.wiring("B2").listen == "motet://127.0.0.1:7702"


def test_load_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "overlay.toml"
    path.write_text(EXAMPLE)
    assert Topology.load(path).names == ("B1", "B2")
    path.write_text("x = ")
    with pytest.raises(TopologyError, match=r"overlay\.toml: is not TOML"):
        Topology.load(path)
    with pytest.raises(TopologyError, match="cannot be read"):
        Topology.load(tmp_path / "missing.toml")


@pytest.mark.parametrize(
    "topology",
    [
        Topology.default(),
        Topology.line(1),
        Topology.star(5, covering=True),
        Topology.star(5, covering="retract"),
        Topology.tree(9, fanout=3, lease=5.0, heartbeat=0.5),
        Topology.line(2, liveness=Liveness(gap_s=0.1, delay_s=5.0)),
        Topology.line(2, name="two"),
    ],
)
def test_round_trip_and_one_dialler_per_edge(topology: Topology) -> None:
    again = Topology.parse(topology.to_toml())
    assert again == topology
    assert len(topology.edges) == len(topology.brokers) - 1
    assert len({frozenset(edge) for edge in topology.edges}) == len(topology.edges)


def test_shapes() -> None:
    assert Topology.default().edges == (("B2", "B1"), ("B3", "B2"))
    assert Topology.star(4).neighbours("B1") == ("B2", "B3", "B4")
    assert Topology.tree(7).neighbours("B2") == ("B1", "B4", "B5")
    for bad in (0, -1):
        with pytest.raises(TopologyError, match="at least one broker"):
            Topology.line(bad)
    with pytest.raises(TopologyError, match="fanout"):
        Topology.tree(3, fanout=0)


def test_an_unknown_broker_lists_the_known_ones() -> None:
    with pytest.raises(TopologyError, match="no broker 'B9'; it has B1, B2, B3"):
        Topology.default().place("B9")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "brokers: is missing"),
        ("[brokers]", "there is none"),
        ('[brokers.B1]\nlisten = "x"', r"brokers\.B1\.listen: .*host:port"),
        ('[brokers.B1]\nlisten = "127.0.0.1:0"', "port 0"),
        ("[brokers.B1]\nlisten = 7701", r"brokers\.B1\.listen: .*string.*not 7701"),
        ('[brokers.B1]\nlinks = ["B1"]', r"brokers\.B1\.listen: is missing"),
        ('[brokers."B 1"]\nlisten = "127.0.0.1:1"', "is not a name"),
        ('[brokers.B1]\nlisten = "127.0.0.1:1"\nport = 2', r"B1\.port: is not known"),
        ("[overlay]\nname = 'a b'\n" + brokers(B1=[]), r"overlay\.name"),
        ("[overlay]\nlease_s = -1\n" + brokers(B1=[]), r"overlay\.lease_s"),
        ("[overlay]\nheartbeat_s = nan\n" + brokers(B1=[]), r"overlay\.heartbeat_s"),
        ("[overlay]\ncovering = 'yes'\n" + brokers(B1=[]), r"overlay\.covering"),
        ("[overlay]\ncovering = 1\n" + brokers(B1=[]), r"overlay\.covering"),
        (brokers(B1=[]) + brokers(B1=[]), "is not TOML"),
        (
            '[brokers.A]\nlisten = "h:1"\n[brokers.B]\nlisten = "motet://h:1"\nlinks = ["A"]',
            r"brokers\.B\.listen: motet://h:1 is taken by A",
        ),
        (brokers(B1=["B2"]), "no broker 'B2'; known are B1"),
        (brokers(B1=["B1"]), "linked to itself"),
        (brokers(B1=["B2"], B2=["B1"]), "B2–B1 is already written at B1"),
        (brokers(B1=[], B2=["B1", "B1"]), "already written at B2"),
        (
            brokers(B1=[], B2=["B1"], B3=["B2"], B4=["B3", "B1"]),
            r"brokers\.B4\.links: closes the cycle B4 – B3 – B2 – B1 – B4",
        ),
        (
            brokers(B1=[], B2=["B1"], B3=[], B4=["B3"], B5=[]),
            r"\{B1, B2\} and \{B3, B4\} and \{B5\}",
        ),
    ],
)
def test_bad_files_say_what_and_where(text: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says) as caught:
        Topology.parse(text, "bad.toml")
    assert str(caught.value).startswith("bad.toml: ")


@pytest.mark.parametrize("seconds", [0, -1.0, 1e9, float("nan"), float("inf"), "2", True])
def test_times_are_checked_however_the_topology_was_made(seconds: float) -> None:
    for name in ("lease", "heartbeat"):
        with pytest.raises(TopologyError, match=rf"overlay\.{name}_s: is .*choose from"):
            Topology.line(2, **{name: seconds})  # type: ignore[arg-type]
        with pytest.raises(TopologyError, match=rf"overlay\.{name}_s: is .*choose from"):
            replace(Topology.line(2), **{f"{name}_s": seconds})  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [Topology.line, Topology.star, Topology.tree])
def test_options_have_the_names_that_local_gives_them(shape: Callable[..., Topology]) -> None:
    made = shape(2, lease=7.0, heartbeat=0.5, outbox_bound=9)
    assert (made.lease_s, made.heartbeat_s, made.outbox_bound) == (7.0, 0.5, 9)
    for name in ("lease_s", "heartbeat_s", "source"):
        with pytest.raises(
            MisuseError, match=f"unknown option {name}; use one of name, .*lease, h"
        ):
            shape(2, **{name: 3})
    assert LocalOptions.__annotations__.keys() - {"data"} <= TopologyOptions.__annotations__.keys()


def test_a_broker_is_told_the_heartbeat_of_its_overlay() -> None:
    assert Topology.line(2, heartbeat=12.0).config("B1").heartbeat_s == 12.0


def test_short_addresses_mean_tcp() -> None:
    assert full_address("h:1") == "motet://h:1"
    assert full_address("inproc://x") == "inproc://x"


def test_inproc_addresses() -> None:
    text = '[brokers.A]\nlisten = "inproc://A"\n[brokers.B]\nlisten = "inproc://B"\nlinks=["A"]'
    assert Topology.parse(text).wiring("B").dial == {"A": "inproc://A"}


def test_the_file_sets_the_liveness_times() -> None:
    topology = Topology.parse("[liveness]\ngap_s = 0.05\ndelay_s = inf\n" + EXAMPLE)
    assert topology.config("B1").liveness == Liveness(gap_s=0.05)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("gap_s = 0.0", r"liveness\.gap_s: is 0\.0; choose from 0\.001 to 3600 seconds"),
        ("gap_s = inf", r"liveness\.gap_s: is inf"),
        ("delay_s = nan", r"liveness\.delay_s: is nan; .* or inf for never"),
        ("nack_repeat_most_s = 0.1", "nack_repeat_most_s: is 0.1; choose at least nack_repeat_s"),
        ("gab_s = 1.0", r"liveness\.gab_s: is not known here"),
    ],
)
def test_invalid_liveness_times_are_refused(line: str, why: str) -> None:
    with pytest.raises(TopologyError, match=why):
        Topology.parse(f"[liveness]\n{line}\n" + EXAMPLE)
