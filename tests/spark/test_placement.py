"""From a recorded history to a file of sites."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from motet.audit.files import HistoryWriter
from motet.cli import pipeline
from motet.cli.console import FINE, MISUSE
from motet.cli.main import run
from motet.errors import MisuseError
from motet.sequencer.sites_file import Sites
from motet.spark.placement import topic_graph
from tests.spark.ground import Lent

SITES = """
[ordering]
line = ["S1", "S2"]
[sites.S1]
listen = "127.0.0.1:7720"
topics = ["far.*"]
[sites.S2]
listen = "127.0.0.1:7721"
topics = ["near"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Clients near S2 publish on `far.a` and `far.b`, those near S1 on `near`. Two streams combine
    the first two, one of which has joined twice."""
    into = HistoryWriter(tmp_path / "history")
    for number in range(1, 31):
        into.add(
            "order_published", client="x", nth=number, topic="far.a", number=number, place="S2"
        )
        into.add("order_published", client="y", nth=number, topic="near", number=number, place="S1")
    for number in range(1, 11):
        into.add("order_published", client="x", nth=99, topic="far.b", number=number, place="S2")
    into.add("order_published", client="z", nth=1, topic="near", number=31, place="S9")
    for stream, topics in {
        "x.1.1": ("far.a", "far.b"),
        "x.1.2": ("far.a", "far.b"),
        "z.1.1": ("far.b", "far.a", "silent"),
    }.items():
        for nth, topic in enumerate(topics):
            into.add("order_cuts", stream=stream, nth=nth, what="cut", topic=topic)
        into.add("order_cuts", stream=stream, nth=9, what="dropped", topic="near")
    into.flush()
    (tmp_path / "sites.toml").write_text(SITES)
    return tmp_path


def test_the_graph_has_publications_by_place_and_pairs_of_streams(
    spark: SparkSession, folder: Path
) -> None:
    graph, strays = topic_graph(spark, folder / "history", ("S1", "S2"))
    assert graph.counts == {
        "far.a": {"S2": 30, "S1": 0},
        "far.b": {"S2": 10, "S1": 0},
        "near": {"S1": 31},
        "silent": {"S1": 0},
    }
    assert graph.shared == {
        ("far.a", "far.b"): 2,
        ("far.a", "silent"): 1,
        ("far.b", "silent"): 1,
    }
    assert strays == 1


def test_a_history_without_order_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="has no publications on ordered topics"):
        topic_graph(spark, tmp_path, ("S1",))
    with pytest.raises(MisuseError, match="does not exist"):
        topic_graph(spark, tmp_path / "nowhere", ("S1",))


def test_the_command_writes_a_file_that_sites_take(
    spark: SparkSession,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline, "started", lambda *_: Lent(spark))
    planned = folder / "planned.toml"
    where = [str(folder / "history"), "--sites", str(folder / "sites.toml")]
    options = ["--near", "10", "--delay", "S1-S2=50"]
    words = ["pipeline", "placement", *where, "--out", str(planned), *options]
    assert run([*words, "--json"]) == FINE
    found = json.loads(capsys.readouterr().out)
    assert (found["topics"], found["pairs"], found["publications"]) == (4, 3, 71)
    assert (found["strays"], found["moved"]) == (1, 3)
    now, then = found["current"], found["planned"]
    assert (now["local"], now["near"]) == (1, pytest.approx(0))
    assert (then["local"], then["near"], then["mean_ms"]) == (1, 1, pytest.approx(20))
    config = Sites.load(planned).config("S1")
    homes = {topic: config.site_of(topic) for topic in ("far.a", "far.b", "near")}
    assert homes == {"far.a": "S2", "far.b": "S2", "near": "S1"}
    assert config.site_of("far.c") == "S1"
    assert run(words) == MISUSE
    assert "planned.toml exists" in capsys.readouterr().err
    assert run(words[:5]) == FINE
    shown = capsys.readouterr().out
    assert "mean latency" in shown
    assert "topics that would move: 3 of 4" in shown
