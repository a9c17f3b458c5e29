"""The folder of a site: replay, snapshots, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from motet.broker.core.rebuild import BROKER
from motet.broker.folder.compaction import Compaction
from motet.broker.folder.examination import examine, facts, machine_in
from motet.broker.folder.recovery import (
    JOURNAL,
    OpenedFolder,
    close_off,
    open_folder,
    open_machine,
    read_state,
    snapshots,
)
from motet.errors import AnotherLine, LogCorrupted, MisuseError, WrittenByAnotherVersion
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Output, Received
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.sequencing.messages import (
    PAIRS,
    ChangeRequest,
    Confirm,
    GiveBack,
    NumberRequest,
    Numbers,
    OrderHello,
    TopicQuery,
)
from motet.sequencer import records
from motet.sequencer.config import SiteConfig
from motet.sequencer.core import SiteCore
from motet.sequencer.machine import SITE
from tests.waiting import PATIENCE_S

CONFIG = SiteConfig("S1")
IN_LINE = SiteConfig("S1", ("S1", "S2"), (("a*", "S1"), ("b", "S2")))

Opened = OpenedFolder[SiteCore]


def opened(directory: Path, config: SiteConfig = CONFIG) -> Opened:
    return open_machine(SITE, config, directory)


def shut(site: Opened) -> None:
    site.journal.hand_over()
    site.journal.log.shut()  # type: ignore[attr-defined]


def say(site: Opened, frame: Frame, now: float, client: str = "p") -> Output:
    out = site.core.step(Received(ord(client), frame), now)
    assert not out.close, out.close
    site.journal.append(out.persist)
    return out


def live(site: Opened, client: str = "p", topics: tuple[str, ...] = ("a", "ab")) -> None:
    """Some numbers of two topics that a stream combines: published, given back, still open."""
    core, now = site.core, site.core.durable.now + 1.0
    say(site, OrderHello(PROTOCOL_VERSION, client), now, client)
    say(site, TopicQuery(topics), now, client)
    first, second = (core.site.ids[topic] for topic in topics)
    say(site, ChangeRequest(f"{client}-stream", 1, (first, second)), now, client)
    for at in range(1, 7):
        say(site, NumberRequest(at, (first if at % 2 else second,)), now + at, client)
    say(site, Confirm(3), now + 7.0, client)
    say(site, GiveBack((4,)), now + 7.0, client)


@pytest.fixture
def lived(tmp_path: Path) -> tuple[Path, str]:
    """The folder of a site that has stopped, and the digest of its state."""
    site = opened(tmp_path)
    live(site)
    shut(site)
    return tmp_path, site.core.durable.digest()


def test_a_site_continues_where_it_stopped(lived: tuple[Path, str]) -> None:
    directory, digest = lived
    site = opened(directory)
    assert site.core.durable.digest() == digest
    assert site.replayed == 1 + len(list(facts(directory, machine=SITE))) > 8
    site.core.validate()
    # A request that comes again gets the same number, and the next one the next.
    say(site, OrderHello(PROTOCOL_VERSION, "p"), 9.0)
    topic, other = (site.core.site.ids[each] for each in ("a", "ab"))
    answers = say(site, NumberRequest(5, (topic, other, topic)), 9.0).deliver
    given = [
        (stamp.topic, stamp.number)
        for _, frame in answers
        if isinstance(frame, Numbers)
        for stamp in frame.stamps
        if stamp is not None
    ]
    assert sorted(given) == sorted([(topic, 3), (other, 3), (topic, 4)])
    shut(site)


def test_a_site_keeps_its_incarnation(tmp_path: Path) -> None:
    first, other = opened(tmp_path / "one"), opened(tmp_path / "two")
    shut(first)
    shut(other)
    again = opened(tmp_path / "one")
    shut(again)
    assert first.core.config.incarnation == again.core.config.incarnation
    assert first.core.config.incarnation != other.core.config.incarnation


def test_a_snapshot_restores_the_same_state(lived: tuple[Path, str]) -> None:
    directory, digest = lived
    path = close_off(directory, SITE)
    assert snapshots(directory) == [path]
    site = opened(directory)
    assert site.replayed == 0
    assert site.core.durable.digest() == digest
    site.core.validate()
    live(site, "q")
    shut(site)
    again = opened(directory)
    shut(again)
    assert again.core.durable.digest() == site.core.durable.digest() != digest


async def test_another_process_takes_a_snapshot_while_the_site_runs(tmp_path: Path) -> None:
    site = opened(tmp_path)
    live(site)
    compaction = Compaction(tmp_path, site.journal, site.core.acknowledged, machine=SITE)
    path = await asyncio.wait_for(compaction.take(), PATIENCE_S)
    assert snapshots(tmp_path) == [path]
    live(site, "q")
    shut(site)
    again = opened(tmp_path)
    assert again.core.durable.digest() == site.core.durable.digest()
    assert again.replayed == len(list(facts(tmp_path, 1 + int(path.stem), SITE))) > 0
    shut(again)


def test_messages_for_an_absent_site_survive(tmp_path: Path) -> None:
    site = opened(tmp_path, IN_LINE)
    say(site, OrderHello(PROTOCOL_VERSION, "p"), 1.0)
    say(site, TopicQuery(("a",)), 1.0)
    say(site, ChangeRequest("stream", 1, (0, 1)), 1.0)  # topic 1 lives at S2
    say(site, NumberRequest(1, (0, 0)), 2.0)
    waiting = list(site.core.durable.ledgers["S2"].outbox)
    assert len(waiting) == 2
    shut(site)
    again = opened(tmp_path, IN_LINE)
    assert list(again.core.durable.ledgers["S2"].outbox) == waiting
    shut(again)
    close_off(tmp_path, SITE)
    state, _ = read_state(SITE, tmp_path)
    assert list(state.ledgers["S2"].outbox) == waiting


# ── what is refused ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("from_snapshot", [False, True])
@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        (replace(IN_LINE, line=("S2", "S1")), AnotherLine, "the line S1, S2 .* with S2, S1"),
        (replace(IN_LINE, line=("S1", "S2", "S3")), AnotherLine, "the line S1, S2"),
        (replace(IN_LINE, mode=PAIRS), AnotherLine, "the mode causal .* with pairs"),
        (replace(IN_LINE, name="S2"), MisuseError, "the journal of S1, not of S2"),
        (replace(IN_LINE, placement=(("ab", "S2"),)), AnotherLine, "topic 'ab' .* placed at S2"),
    ],
    ids=["turned line", "longer line", "mode", "name", "moved topic"],
)
def test_a_site_cannot_be_started_as_another_one(
    tmp_path: Path, config: SiteConfig, error: type[Exception], text: str, from_snapshot: bool
) -> None:
    site = opened(tmp_path, IN_LINE)
    live(site)
    shut(site)
    if from_snapshot:
        close_off(tmp_path, SITE)
    with pytest.raises(error, match=text) as caught:
        opened(tmp_path, config)
    assert str(tmp_path) in str(caught.value)
    shut(opened(tmp_path, IN_LINE))  # it has let go of the folder


def test_topics_without_numbers_may_be_placed_anew(tmp_path: Path) -> None:
    shut(opened(tmp_path, IN_LINE))
    moved = replace(IN_LINE, placement=(("a*", "S2"),), lease_s=3.0)
    site = opened(tmp_path, moved)
    assert site.core.config.placement == moved.placement
    assert site.core.config.lease_s == 3.0
    shut(site)


def test_the_folder_of_a_broker_is_not_that_of_a_site(tmp_path: Path) -> None:
    open_folder(BrokerConfig("S1"), tmp_path / "broker").journal.log.shut()  # type: ignore[attr-defined]
    with pytest.raises(LogCorrupted, match="belongs to a log for 'journal'"):
        opened(tmp_path / "broker")
    shut(opened(tmp_path / "site"))
    with pytest.raises(LogCorrupted, match="belongs to a log for 'site-journal'"):
        open_folder(BrokerConfig("S1"), tmp_path / "site")
    known = (BROKER, SITE)
    assert machine_in(tmp_path / "broker", known) is BROKER
    assert machine_in(tmp_path / "site", known) is SITE
    assert machine_in(tmp_path, known) is BROKER


def test_another_version_replays_no_journal(
    lived: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = lived
    monkeypatch.setattr(records, "MACHINE_VERSION", records.MACHINE_VERSION + 1)
    with pytest.raises(WrittenByAnotherVersion, match="motet journal snapshot"):
        opened(directory)


def test_damage_is_named(lived: tuple[Path, str]) -> None:
    directory, digest = lived
    found = examine(directory, SITE)
    assert found.whole
    assert (found.what, found.broker["name"], found.broker["topics"]) == ("site", "S1", 2)
    assert found.broker["digest"] == digest
    (segment,) = (directory / JOURNAL).glob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    with pytest.raises(LogCorrupted, match=segment.name):
        opened(directory)
    found = examine(directory, SITE)
    assert segment.name in found.problems[0]
    assert "all numbers begin again" in found.way_out


def test_a_record_that_makes_no_sense_is_named(lived: tuple[Path, str]) -> None:
    directory, _ = lived
    site = opened(directory)
    at = site.journal.appended + 1
    site.journal.log.append([b"\xc1"])
    shut(site)
    with pytest.raises(LogCorrupted, match=rf"fact {at} in .* makes no sense.*stop all sites"):
        opened(directory)
