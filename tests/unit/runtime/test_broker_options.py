"""`motet broker`: from its options to what the driver is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from motet.broker.overlay.topology import Topology, Wiring
from motet.cli import broker as command
from motet.cli import console
from motet.cli.main import run
from motet.protocol.config import BrokerConfig


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[BrokerConfig, Wiring]]:
    """What would have been served."""
    told: list[tuple[BrokerConfig, Wiring]] = []

    def serve(config: BrokerConfig, wiring: Wiring, *_: Any) -> int:
        told.append((config, wiring))
        return 0

    monkeypatch.setattr(command, "_serve", serve)
    monkeypatch.setattr(command, "run", lambda status: status)
    return told


def test_options_become_settings(served: list[tuple[BrokerConfig, Wiring]]) -> None:
    where = ["broker", "--name", "B1", "--listen", "127.0.0.1:7701"]
    assert run([*where, "--link", "B2=h:1", "--lease", "5", "--heartbeat", "0.5"]) == 0
    assert run([*where, "--covering"]) == 0
    (config, wiring), (plain, _) = served
    assert (config.lease_s, config.heartbeat_s, config.covering) == (5.0, 0.5, False)
    assert (wiring.listen, wiring.dial) == ("motet://127.0.0.1:7701", {"B2": "motet://h:1"})
    assert (plain.lease_s, plain.heartbeat_s, plain.covering) == (30.0, 2.0, True)


@pytest.mark.parametrize(
    "option", [["--lease", "5"], ["--heartbeat", "1"], ["--covering"], ["--link", "B2"]]
)
def test_options_that_contradict_a_topology_are_misuse(
    option: list[str],
    tmp_path: Path,
    served: list[tuple[BrokerConfig, Wiring]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "two.toml"
    file.write_text(Topology.line(2, lease=7.0, heartbeat=12.0).to_toml())
    whole = ["broker", "--name", "B2", "--topology", str(file)]
    assert run([*whole, *option]) == console.MISUSE
    assert option[0] in capsys.readouterr().err
    assert run(whole) == 0
    ((config, _),) = served
    assert (config.lease_s, config.heartbeat_s) == (7.0, 12.0)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "4000", "soon"])
def test_impossible_heartbeats(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    listen = ["broker", "--name", "B1", "--listen", "127.0.0.1:0"]
    assert run([*listen, "--heartbeat", seconds]) == console.MISUSE
    assert "--heartbeat" in capsys.readouterr().err
