"""Real processes of a sequencer, with real syncs, spoken to with raw frames: killed under load,
back again, and started wrongly."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import pytest

from motet.broker.folder.examination import examine
from motet.broker.folder.recovery import read_state, snapshots
from motet.cli.main import run
from motet.fleet.process import BrokerProcess, SiteProcess, StartFailed, free_addresses
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.sequencing.messages import (
    Changed,
    ChangeRequest,
    NumberRequest,
    Numbers,
    OrderHello,
    OrderWelcome,
    RequestsSettled,
    Timestamp,
    TopicIds,
    TopicQuery,
)
from motet.protocol.session.messages import Farewell, Status
from motet.runtime.tcp import host_and_port
from motet.sequencer.machine import SITE
from tests.integration.raw_peer import Speaker
from tests.waiting import PATIENCE_S, eventually

OPTIONS = ("--keep", "60", "--lease", "60")
GONE = (ConnectionError, asyncio.IncompleteReadError, OSError)
TOPICS = ("a", "b", "c")


async def connected(site: SiteProcess, client: str) -> Speaker:
    """An instance of a client; tried again while the site is away."""
    while True:
        try:
            speaker = Speaker(*await asyncio.open_connection(*host_and_port(site.address)))
            speaker.say(OrderHello(PROTOCOL_VERSION, client))
            await speaker.hear(OrderWelcome)
        except GONE:
            await asyncio.sleep(0.02)
        else:
            return speaker


async def ids_at(site: SiteProcess, *names: str) -> tuple[int, ...]:
    speaker = await connected(site, "asks")
    speaker.say(TopicQuery(names))
    ids = (await speaker.hear(TopicIds)).ids
    speaker.close()
    return tuple(ids[name] for name in names)


class Publisher:
    """Requests numbers without a pause, one frame after the other, whatever happens to the site.
    It confirms late, and asks again for what it cannot know to be answered, and for some that it
    knows."""

    def __init__(self, site: SiteProcess, name: str, topics: Sequence[int], batch: int) -> None:
        self.site = site
        self.name = name
        self.batch = batch
        self.topics = topics
        self.given: dict[int, Timestamp] = {}
        self.repeated = 0
        self.reconnects = -1
        self._confirmed = 0

    async def run(self, enough: asyncio.Event) -> None:
        while not enough.is_set():
            speaker = await connected(self.site, self.name)
            self.reconnects += 1
            with contextlib.suppress(*GONE):
                await self._publish(speaker, enough)
            speaker.close()

    async def _publish(self, speaker: Speaker, enough: asyncio.Event) -> None:
        while not enough.is_set():
            first = self._confirmed + 1
            last = len(self.given) + self.batch
            topics = tuple(self.topic(at) for at in range(first, last + 1))
            speaker.say(NumberRequest(first, topics, self._confirmed))
            while len(self.given) < last:
                frame = await speaker.hear_any()
                assert not isinstance(frame, Farewell) or frame.error == "Disconnected", frame
                if isinstance(frame, Numbers):
                    self._take(frame)
                elif isinstance(frame, RequestsSettled):
                    assert not frame.voided
            self._confirmed = max(0, last - self.batch)

    def topic(self, request: int) -> int:
        return self.topics[request % len(self.topics)]

    def _take(self, frame: Numbers) -> None:
        for request, stamp in enumerate(frame.stamps, frame.first):
            assert stamp is not None
            assert stamp.topic == self.topic(request)
            before = self.given.setdefault(request, stamp)
            assert before == stamp, "a repeated request got another timestamp"
            self.repeated += before is not stamp


def check_numbers(publishers: Iterable[Publisher]) -> dict[int, int]:
    """No number twice, and none between them that nobody has; returns the last by topic."""
    by_topic: dict[int, list[int]] = defaultdict(list)
    for publisher in publishers:
        assert sorted(publisher.given) == list(range(1, len(publisher.given) + 1))
        for stamp in publisher.given.values():
            by_topic[stamp.topic].append(stamp.number)
    for topic, numbers in by_topic.items():
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), topic
    return {topic: len(numbers) for topic, numbers in by_topic.items()}


@contextlib.asynccontextmanager
async def running(*sites: SiteProcess) -> AsyncIterator[None]:
    try:
        for site in sites:
            await site.start()
        yield
    finally:
        for site in sites:
            site.end()


def alone(folder: Path, *options: str) -> SiteProcess:
    (address,) = free_addresses(1)
    return SiteProcess("S1", ("--listen", address, *OPTIONS, *options), folder)


async def test_a_site_that_is_killed_under_load_forgets_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    site = alone(tmp_path, "--snapshot-bytes", "20000")
    async with running(site):
        topics = await ids_at(site, *TOPICS)
        publishers = [Publisher(site, f"p{at}", topics, 1 + 7 * at) for at in range(4)]
        enough = asyncio.Event()
        work = [asyncio.create_task(each.run(enough)) for each in publishers]
        for kills in range(1, 4):
            before = [len(each.given) for each in publishers]
            await eventually(
                lambda before=before: all(
                    len(each.given) > was + 100
                    for each, was in zip(publishers, before, strict=True)
                )
            )
            site.kill()
            await site.ended()
            await site.start()
            await eventually(lambda kills=kills: min(p.reconnects for p in publishers) >= kills)
        await eventually(lambda: snapshots(site.data))
        enough.set()
        await asyncio.gather(*work)
        last = check_numbers(publishers)
        assert sum(each.repeated for each in publishers) > 0
        assert await site.stop()
        assert site.exit_status == 0
    found = examine(site.data, SITE)
    assert found.whole, found.problems
    state, _ = read_state(SITE, site.data)
    state.validate()
    assert {topic: state.site.number[topic] for topic in last} == last


async def test_a_stream_and_its_cut_survive_a_kill(tmp_path: Path) -> None:
    site = alone(tmp_path)
    async with running(site):
        first, second = await ids_at(site, "a", "b")
        client = await connected(site, "p")
        client.say(NumberRequest(1, (first, first)))
        await client.hear(Numbers)
        client.say(ChangeRequest("stream", 1, (first, second)))
        changed = await client.hear(Changed)
        assert changed.cut == {first: 2, second: 0}
        site.kill()
        await site.ended()
        await site.start()
        client = await connected(site, "p")
        client.say(NumberRequest(3, (second, first)))
        numbers = await client.hear(Numbers)
        assert [stamp and stamp.entries for stamp in numbers.stamps] == [(first, 2), (second, 1)]
        client.say(ChangeRequest("stream", 1, (first, second)))
        assert await client.hear(Changed) == changed
        assert await site.stop()


# ── three sites ──────────────────────────────────────────────────────────────────────────


def line(folder: Path) -> tuple[Path, list[SiteProcess]]:
    names = ("S1", "S2", "S3")
    text = f'[ordering]\nline = {list(names)}\nlease_s = 60\nelsewhere = "S1"\n'
    for name, address in zip(names, free_addresses(3), strict=True):
        text += f'[sites.{name}]\nlisten = "{address}"\ntopics = ["{name}.*"]\n'
    file = folder / "sites.toml"
    file.write_text(text)
    return file, [
        SiteProcess(name, ("--name", name, "--sites", str(file)), folder) for name in names
    ]


async def status_of(site: SiteProcess) -> dict[str, object]:
    speaker = Speaker(*await asyncio.open_connection(*host_and_port(site.address)))
    state = (await speaker.status()).state
    speaker.close()
    return dict(state)


async def linked(site: SiteProcess) -> bool:
    links = (await status_of(site))["links"]
    assert isinstance(links, dict)
    return len(links) == 2 and all(link["phase"] == "up" for link in links.values())


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_of_three_sites_one_is_killed_and_comes_back(tmp_path: Path, at: int) -> None:
    _, sites = line(tmp_path)
    async with running(*sites):
        topics = [(await ids_at(site, f"{site.name}.t"))[0] for site in sites]
        assert [topic % 3 for topic in topics] == [0, 1, 2]
        for site in sites:
            await eventually(lambda site=site: linked(site))
        client = await connected(sites[0], "reader")
        client.say(ChangeRequest("stream", 1, tuple(topics)))
        assert (await client.hear(Changed)).cut == dict.fromkeys(topics, 0)
        publishers = [
            Publisher(site, f"p{site.name}", (topic,), 5)
            for site, topic in zip(sites, topics, strict=True)
        ]
        enough = asyncio.Event()
        work = [asyncio.create_task(each.run(enough)) for each in publishers]
        await grown(publishers)
        killed = sites[at]
        killed.kill()
        await killed.ended()
        if at < 2:  # the highest site needs no other one
            await grown(publishers[2:])
        await killed.start()
        await grown(publishers)
        # Changes pass all sites again, too, and their cut covers what was published before.
        client.close()
        client = await connected(sites[0], "reader")
        least = {each.topics[0]: len(each.given) for each in publishers}
        client.say(ChangeRequest("stream", 2, tuple(topics[1:])))
        cut = (await client.hear(Changed)).cut
        assert all(cut[topic] >= least[topic] for topic in topics[1:])
        enough.set()
        await asyncio.gather(*work)
        last = check_numbers(publishers)
        for site in sites:
            assert await site.stop()
            assert site.exit_status == 0, site.said
    for site, topic in zip(sites, topics, strict=True):
        state, _ = read_state(SITE, site.data)
        state.validate()
        assert state.site.number[topic] == last[topic]


async def grown(publishers: Sequence[Publisher], by: int = 50) -> None:
    before = [len(each.given) for each in publishers]
    await eventually(
        lambda: all(
            len(each.given) >= was + by for each, was in zip(publishers, before, strict=True)
        )
    )


async def test_a_site_with_another_placement_is_not_linked(tmp_path: Path) -> None:
    file, sites = line(tmp_path)
    other = tmp_path / "other.toml"
    other.write_text(file.read_text().replace('"S2.*"', '"S2.*", "x"'))
    strange = SiteProcess("S2", ("--name", "S2", "--sites", str(other)), tmp_path)
    async with running(sites[0], strange):
        await eventually(lambda: "same line, placement and mode" in sites[0].said + strange.said)
        assert sites[0].running
        assert strange.running


async def test_a_site_that_has_lost_its_folder_is_refused(tmp_path: Path) -> None:
    """It would give the same numbers again."""
    _, sites = line(tmp_path)
    async with running(*sites):
        await eventually(lambda: linked(sites[0]))
        sites[1].kill()
        await sites[1].ended()
        sites[1].data.rename(tmp_path / "lost")
        await sites[1].start()
        await asyncio.wait_for(sites[1].ended(), PATIENCE_S)
        assert "has lost its state" in sites[1].said
        assert sites[0].running


# ── how it starts and ends ───────────────────────────────────────────────────────────────


async def test_sigterm_ends_it_cleanly(tmp_path: Path) -> None:
    site = alone(tmp_path)
    async with running(site):
        (topic,) = await ids_at(site, "a")
        client = await connected(site, "p")
        client.say(NumberRequest(1, (topic,)))
        await client.hear(Numbers)
        state = await status_of(site)
        assert (state["site"], state["line"], state["topics"]) == ("S1", ["S1"], 1)
        journal = state["journal"]
        assert isinstance(journal, dict)
        assert journal["durability"] == "fsync"
        site.signal(signal.SIGTERM)
        farewell = await client.last_word()
        assert (farewell.error, farewell.text) == ("Disconnected", "the site stops")
        await asyncio.wait_for(site.ended(), PATIENCE_S)
        assert site.exit_status == 0
        assert "Traceback" not in site.said


async def test_what_is_no_frame_for_a_site_ends_the_connection_only(tmp_path: Path) -> None:
    site = alone(tmp_path)
    async with running(site):
        client = await connected(site, "p")
        client.say(Status({}))
        assert (await client.last_word()).text == "a sequencer does not take Status"
        client = await connected(site, "p")
        client.say(NumberRequest(1, (5,)))
        assert (await client.last_word()).error == "ProtocolError"
        await ids_at(site, "a")


def motet(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, "-m", "motet", *words),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_wrong_options_and_files_are_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, _ = line(tmp_path)
    broken = tmp_path / "broken.toml"
    broken.write_text("[ordering]\nline = 5\n[sites.S1]\n")
    sites, data = str(file), ("--data", str(tmp_path / "data"))
    for words, problem in [
        ((), "no address to listen on"),
        (("--listen", "nats://127.0.0.1:4222"), "is not an address"),
        (("--listen", "127.0.0.1"), "127.0.0.1"),
        (("--listen", "127.0.0.1:0", "--mode", "some"), "unknown mode 'some'"),
        (("--listen", "127.0.0.1:0", "--durability", "some"), "unknown durability 'some'"),
        (("--listen", "127.0.0.1:0", "--name", "a b"), "not a valid name"),
        (("--sites", sites), "describes several sites"),
        (("--sites", sites, "--name", "S7"), "has no site 'S7'"),
        (("--sites", sites, "--name", "S1", "--mode", "pairs"), "contains all settings"),
        (("--sites", str(broken), "--name", "S1"), "ordering.line: is 5"),
        (("--sites", str(tmp_path), "--name", "S1"), "cannot be read"),
    ]:
        assert run(["sequencer", *data, *words]) == 2, words
        said = capsys.readouterr().err
        assert said.startswith("error: "), said
        assert problem in said.splitlines()[0]
        assert len(said.splitlines()) <= 2, "the error, and maybe a hint"
    assert not (tmp_path / "data").exists()


async def test_a_folder_is_of_one_site_in_one_line_for_good(tmp_path: Path) -> None:
    site = alone(tmp_path)
    async with running(site):
        data = ("--data", str(site.data))
        taken = motet("sequencer", "--listen", "127.0.0.1:0", *data)
        assert "Another process" in taken.stderr or "in use" in taken.stderr, taken.stderr
        port = motet("sequencer", "--listen", site.address, "--data", str(tmp_path / "new"))
        assert "Traceback" not in port.stderr
        assert port.returncode == 2
        assert await site.stop()
    file, _ = line(tmp_path)
    for words, problem in [
        (("--listen", "127.0.0.1:0", "--mode", "pairs"), "founded with the mode causal"),
        (("--sites", str(file), "--name", "S1"), "founded with the line S1 and is now"),
        (("--listen", "127.0.0.1:0", "--name", "S2"), "the journal of S1, not of S2"),
    ]:
        done = motet("sequencer", *data, *words)
        assert done.returncode == 2, done.stderr
        assert problem in done.stderr
        assert str(site.data) in done.stderr
        assert "Traceback" not in done.stderr
    inspected = motet("journal", "inspect", str(site.data), "--facts", "3")
    assert inspected.returncode == 0, inspected.stderr
    assert "site" in inspected.stdout
    assert motet("journal", "snapshot", str(site.data)).returncode == 0
    assert motet("journal", "verify", str(site.data)).returncode == 0


# ── in the process of a broker ───────────────────────────────────────────────────────────


async def test_the_root_of_an_overlay_has_its_sequencer(tmp_path: Path) -> None:
    broker_at, site_at = free_addresses(2)
    file = tmp_path / "topology.toml"
    ordering = f'[ordering]\nlisten = "{site_at}"\n'
    file.write_text(f'{ordering}[brokers.B1]\nlisten = "{broker_at}"\n')
    broker = BrokerProcess("B1", ("--topology", str(file)), tmp_path)
    site = SiteProcess("sequencer", (), tmp_path)
    site.address = site_at  # it is reached like a site of its own
    try:
        await broker.start()
        (topic,) = await ids_at(site, "a")
        publisher = Publisher(site, "p", (topic,), 3)
        enough = asyncio.Event()
        work = asyncio.create_task(publisher.run(enough))
        await grown([publisher])
        broker.kill()
        await broker.ended()
        await broker.start()
        await grown([publisher])
        enough.set()
        await work
        check_numbers([publisher])
        assert (await status_of(broker))["sequencer"] == {"address": site_at}
        file.write_text(f'{ordering}mode = "pairs"\n[brokers.B1]\nlisten = "{broker_at}"\n')
        broker.reload()
        await eventually(lambda: "ordering: cannot change while B1 runs" in broker.said)
        assert await broker.stop()
        assert broker.exit_status == 0
        with pytest.raises(StartFailed, match="founded with the mode causal"):
            await broker.start()
    finally:
        broker.end()
    assert examine(tmp_path / "B1" / "sequencer", SITE).whole


async def test_a_broker_whose_sequencer_cannot_listen_does_not_start(tmp_path: Path) -> None:
    broker_at, site_at = free_addresses(2)
    file = tmp_path / "topology.toml"
    file.write_text(f'[ordering]\nlisten = "{site_at}"\n[brokers.B1]\nlisten = "{broker_at}"\n')
    broker = BrokerProcess("B1", ("--topology", str(file)), tmp_path)
    taken = SiteProcess("S1", ("--listen", site_at), tmp_path)
    async with running(taken):
        with pytest.raises(StartFailed, match="is in use"):
            await broker.start()
        assert "Traceback" not in broker.said
