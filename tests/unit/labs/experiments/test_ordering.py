"""Paper 4's evaluation: its workload, its links, its algorithm as published; rows become figures, a
page and pictures."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import pytest
from msgspec.structs import replace

from motet.errors import MisuseError
from motet.placement.prediction import predict
from motet.placement.search import best_placement
from motet.protocol.contract import Received
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.sequencing.messages import (
    MAX_UNSETTLED,
    MODES,
    PAIRS,
    ChangeRequest,
    NumberRequest,
    Numbers,
    OrderHello,
    TopicQuery,
)
from motet.sequencer.config import SiteConfig
from motet.sequencer.core import SiteCore
from motet_labs.experiments import as_published, ordering_plots, paper4, plots
from motet_labs.experiments.as_published import FAVOURABLE, LITERAL, PublishedSequencer
from motet_labs.experiments.ordering_plan import FULL, PARTS, QUICK, OrderingPlan
from motet_labs.experiments.ordering_report import (
    BY_NUMBER,
    PLANNED,
    LineRow,
    OrderingReport,
    RunsRow,
    ScheduleRow,
    short,
)
from motet_labs.experiments.region_load import RequestAccount, latency_of, pulsed
from motet_labs.experiments.regions import (
    RegionPublication,
    Regions,
    by_number,
    mean_delays,
    name_of,
    weights,
)
from motet_labs.experiments.stamp_sizes import SizedSite, SizeRow
from motet_labs.experiments.virtual_line import VirtualLine
from motet_labs.experiments.wide_links import DOWN, UP, WideLinks, delays

STEEP, FLAT = 1.9, 0.3
"""Exponents of power laws: of a few favourites, and of many."""
MACHINE = {"cpu": "one", "cores": 1, "python": "3", "loop": "a loop", "load_average": [0.5]}


class TestRegions:
    def test_the_favourites_of_a_region_begin_with_its_own_topics(self) -> None:
        regions = Regions(STEEP, 50)
        assert [regions.topic(0, region) for region in range(5)] == [0, 10, 20, 30, 40]
        assert regions.topic(45, 4) == 35
        assert sum(weights(STEEP, 50)) == pytest.approx(1)

    def test_subscriptions_follow_the_law_and_grow(self) -> None:
        regions = Regions(STEEP, 50, sites=1)
        some, more = (regions.subscriptions(4000, each, seed=3) for each in (1, 4))
        assert all(len(set(topics)) == 4 for topics in more)
        assert [topics[0] for topics in more] == [topics for (topics,) in some]
        first = Counter(topic for (topic,) in some)
        shares = weights(STEEP, 50)
        for topic in range(3):
            assert first[topic] / 4000 == pytest.approx(shares[topic], rel=0.2)

    def test_publications_come_in_pulses_at_their_rate_and_regions_take_turns(self) -> None:
        made = list(Regions(FLAT, 50).publications(1000, 2.0, 0.005, seed=2))
        assert len(made) == 2000
        assert [each.region for each in made[:6]] == [0, 1, 2, 3, 4, 0]
        assert len({each.at_s for each in made}) == 400
        assert made == list(Regions(FLAT, 50).publications(1000, 2.0, 0.005, seed=2))

    def test_a_planner_sees_shares_and_shared_topics(self) -> None:
        graph = Regions(STEEP, 50).graph([(0, 1), (1, 0), (0, 2)])
        assert sum(sum(places.values()) for places in graph.counts.values()) == pytest.approx(1)
        assert graph.partners(PAIRS)[name_of(0)] == [name_of(1)]
        assert graph.counts[name_of(0)]["S1"] > graph.counts[name_of(0)]["S2"]

    def test_site_1_is_the_highest_and_has_the_first_topics(self) -> None:
        placement = by_number(50)
        assert placement.line == ("S5", "S4", "S3", "S2", "S1") == paper4.LINE
        assert [placement.site_of(name_of(topic)) for topic in (0, 9, 10, 49)] == [
            "S1", "S1", "S2", "S5",
        ]  # fmt: skip


class TestLinks:
    def test_a_delay_has_its_mean_and_deviation_and_keeps_the_order(self) -> None:
        for link in (paper4.NEAR, paper4.FAR):
            for delay in delays(link, "a link").values():
                known = [delay.at(step / 1000) for step in range(200_000)]
                assert mean(known) == pytest.approx(link.mean_s, rel=0.03)
                assert pstdev(known) == pytest.approx(link.deviation_s, rel=0.1)
                arrivals = [step / 1000 + delay_s for step, delay_s in enumerate(known)]
                assert arrivals == sorted(arrivals)

    def test_directions_differ_and_come_again(self) -> None:
        one, again = (delays(paper4.FAR, "a link") for _ in range(2))
        assert one[UP].at(7.0) == again[UP].at(7.0) != one[DOWN].at(7.0)

    async def test_data_arrives_later_and_whole(self) -> None:
        """Through a link to an echo."""
        loop = asyncio.get_running_loop()

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1000):
                writer.write(data)
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        links = WideLinks()
        port = server.sockets[0].getsockname()[1]
        opened = await links.open([("a link", (0.05, 0.001), port)])
        reader, writer = await asyncio.open_connection("127.0.0.1", opened["ports"]["a link"])
        began = loop.time()
        for number in range(50):
            writer.write(b"%03d" % number)
        told = await reader.readexactly(150)
        assert loop.time() - began > 0.09
        assert told == b"".join(b"%03d" % number for number in range(50))
        writer.write_eof()
        assert await reader.read() == b""
        assert await links.sent() == {f"a link {UP}": 150, f"a link {DOWN}": 150}
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()


class TestRequests:
    def test_answers_in_any_order_are_counted_once_and_confirmed_in_sequence(self) -> None:
        account = RequestAccount()
        assert account.request(1.0, [7, 8, 9]) == NumberRequest(1, (7, 8, 9), 0)
        assert account.request(2.0, [7]) == NumberRequest(4, (7,), 0)
        account.answer(3, 2, 2.5)
        assert (account.answered, account.open) == (0, 2)
        account.answer(1, 2, 3.0)
        assert (account.answered, account.open) == (4, 0)
        assert account.took == [(1.0, 1.5), (2.0, 0.5), (1.0, 2.0), (1.0, 2.0)]
        assert account.request(4.0, [1]).confirmed == 4

    def test_a_connection_is_full_before_its_site_ends_it(self) -> None:
        account = RequestAccount()
        while not account.is_full:
            account.request(1.0, [7] * 256)
        assert len(account.due) + 256 < MAX_UNSETTLED
        account.answer(1, len(account.due), 2.0)
        assert not account.is_full

    def test_latency_is_of_requests_due_in_the_interval(self) -> None:
        told = latency_of([(0.5, 1.0), (1.0, 0.1), (1.5, 0.3), (1.9, 0.4), (2.0, 9.0)], 1.0, 2.0)
        assert told["events"] == 3
        assert told["mean_ms"] == pytest.approx(800 / 3)
        assert told["per_s"] == 3  # two of these, and one that was asked for before
        assert latency_of([], 1.0, 2.0)["events"] == 0

    def test_a_pulse_has_a_request_for_each_connection(self) -> None:
        made = [RegionPublication(0.0, 0, 0), RegionPublication(0.0, 0, 1)]
        made += [RegionPublication(0.0, 1, 0), RegionPublication(0.1, 0, 0)]
        ids = {0: 10, 1: 11}
        assert pulsed(made, ["S1", "S1"], ids) == [
            (0.0, [(0, "S1", [10, 11]), (1, "S1", [10])]),
            (0.1, [(0, "S1", [10])]),
        ]


class TestVirtualTime:
    @pytest.mark.parametrize("mode", MODES)
    def test_it_takes_as_long_as_the_delays_alone(self, mode: str) -> None:
        regions = Regions(FLAT, 30)
        streams = regions.subscriptions(25, 4)
        graph = regions.graph(streams)
        means = mean_delays(graph.sites)
        numbered = by_number(30)
        planned = best_placement(graph, means, mode, current=numbered, rounds=2)
        known = []
        for placement in (numbered, planned):
            told = VirtualLine(regions, placement, mode, streams).run(500, 0.5, 6.0, seed=1)
            forecast = predict(graph, placement, means, mode)
            assert told["events"] == 3000
            assert told["per_s"] == pytest.approx(500, rel=0.1)
            assert told["mean_ms"] == pytest.approx(forecast.mean_ms, rel=0.05)
            known.append(told["mean_ms"])
        assert known[1] < known[0]


class TestSizes:
    @pytest.mark.parametrize("mode", MODES)
    def test_a_site_with_given_groups_sends_what_one_with_streams_sends(self, mode: str) -> None:
        """Not at first: streams make topics partners one after the other."""
        topics, events = 30, 640
        streams = Regions(FLAT, topics, sites=1).subscriptions(40, 5)
        names = tuple(map(name_of, range(topics)))
        core = SiteCore(SiteConfig("S1", mode=mode))
        for frame in (OrderHello(PROTOCOL_VERSION, "p"), TopicQuery(names)):
            core.step(Received(1, frame), 0.0)
        for number, chosen in enumerate(streams):
            core.step(Received(1, ChangeRequest(str(number), 1, chosen)), 0.0)
        partners = [tuple(core.site.groups.partners.get(topic, ())) for topic in range(topics)]
        sized = SizedSite(mode, partners, FLAT)
        draws = SizedSite(mode, partners, FLAT)._draw
        sent: list[int] = []
        for first in range(1, 2 * events, 64):
            request = NumberRequest(first, draws.topics(64), first - 1)
            out = core.step(Received(1, request), 0.0)
            for _, frame in out.deliver:
                if isinstance(frame, Numbers):
                    sent += [1 + len(stamp.entries) // 2 for stamp in frame.stamps if stamp]
        assert sized.run(events, events) == sent[events:]
        assert mean(sent[events:]) > 2


class TestAsPublished:
    @pytest.mark.parametrize("reading", [LITERAL, FAVOURABLE])
    def test_it_keeps_its_order_while_two_subscribers_change_nothing(
        self, reading: as_published.Reading
    ) -> None:
        run = PublishedSequencer(("T", "U"), reading)
        for name in ("i", "j"):
            run.subscribe(name, "T", "U")
        for topic in "TUUTUTTU":
            run.publish(topic)
        run.settle()
        assert run.outcome() == as_published.PublishedOutcome((), ())
        given = [[event for _, _, event in each.given] for each in run.subscribers.values()]
        assert len(given[0]) == 8
        assert given[0] == given[1]

    def test_the_size_of_a_timestamp_is_that_of_its_group(self) -> None:
        run = PublishedSequencer(("T1", "T2", "T3"))
        for name, topics in {"i": ("T1", "T2", "T3"), "j": ("T1", "T2"), "k": ("T2",)}.items():
            run.subscribe(name, *topics)
        groups = {topic: stage.group() for topic, stage in run.stages.items()}
        assert groups == {"T1": {"T1", "T2"}, "T2": {"T1", "T2"}, "T3": {"T3"}}
        for topic in groups:
            run.publish(topic)
            run.settle()
        assert run.sizes == [2, 2, 1]

    def test_random_runs_are_the_same_again(self) -> None:
        effort = as_published.RandomEffort()
        one, other = (
            [as_published.random_run(seed, FAVOURABLE, effort) for seed in range(12)]
            for _ in range(2)
        )
        assert one == other
        assert any(each.stalled for each in one)


# ── the report ───────────────────────────────────────────────────────────────────────────


def line_row(part: str, shape: str, **more: Any) -> LineRow:
    known = LineRow(
        part, shape, PAIRS, BY_NUMBER, each=10, total=10_000, per_s=10_000, events=80_000,
        mean_ms=190.0, p50_ms=25.0, p99_ms=500.0, answered_per_s=9990.0, missing=0, unsent=0,
        late_ms=0.3, latest_ms=9.0, virtual_ms=181.0, virtual_p50_ms=22.0, virtual_p99_ms=490.0,
        floor_ms=182.0, local=0.6,
        outgoing={f"S{number}": (number - 1) / 10 for number in range(1, 6)},
        cores={"sites": 0.6, "links": 0.4, "clients": 0.1, "others": 0.2},
    )  # fmt: skip
    return replace(known, **more)


def report(*, missing: int = 0, broken: tuple[str, ...] = (), **rates: Any) -> OrderingReport:
    """`rates`: of the row of the geographic shape at the highest rate."""
    rows = [
        line_row("rates", shape, per_s=per_s, answered_per_s=per_s)
        for shape in paper4.SHAPES
        for per_s in paper4.RATES
    ]
    rows[len(paper4.RATES) - 1] = replace(rows[len(paper4.RATES) - 1], missing=missing, **rates)
    for per_s, answered in ((20_000, 19_990.0), (40_000, 31_000.0)):
        rows.append(line_row("beyond", "spray", per_s=per_s, answered_per_s=answered))
    rows += [
        line_row("subscriptions", shape, each=each, total=1000 * each, per_s=5000,
                 answered_per_s=5000.0)
        for shape in paper4.SHAPES
        for each in FULL.more
    ]  # fmt: skip
    for shape, mode in FULL.cases:
        rows.append(line_row("placement", shape, mode=mode))
        rows.append(
            line_row("placement", shape, mode=mode, placed=PLANNED, mean_ms=34.0, floor_ms=32.0)
        )
    sizes = [
        SizeRow(shape, mode, each, each * 10_000, 2.0 * each, 1.5 * each, 50.0 * each, 5.0 * each,
                0.8 * each, 0.6 * each)
        for shape in paper4.SHAPES for mode in MODES for each in FULL.sizes.each
    ]  # fmt: skip
    schedules = [
        ScheduleRow(name, algorithm, stalled, ())
        for name in as_published.SCHEDULES
        for algorithm, stalled in (("as published, literal", ("i waits",)), ("ours", broken))
    ]
    runs = [RunsRow("as published, literal", "subscriptions change", 500, 400, 3)]
    runs += [RunsRow("ours", "all faults", 40, 0, 0)]
    floors = tuple((shape, draw, 100.0 + draw) for shape in paper4.SHAPES for draw in range(10))
    took = dict.fromkeys(PARTS, 60.0)
    return OrderingReport(
        datetime.now(UTC), 300.0, MACHINE, FULL, took, (), tuple(sizes), tuple(schedules),
        tuple(runs), tuple(rows), floors,
    )  # fmt: skip


def holds(found: OrderingReport, *words: str) -> list[bool | None]:
    return [each.holds for each in found.findings if all(word in each.name for word in words)]


class TestReport:
    def test_figures_are_judged_by_the_goals(self) -> None:
        found = report()
        assert holds(found, "mean latency", "goal: below 220") == [True, True]
        assert holds(found, "the same per its floor", "goal: at most 1.2") == [True]
        assert holds(found, "placed by the planner", "goal: below 110") == [True]
        assert holds(found, "above what is predicted", "goal: within 15") == [True]
        assert holds(found, "sent beside the own number") == [True] * 4
        assert holds(report(mean_ms=230.0), "goal: below 220") == [False, True]
        assert holds(report(mean_ms=219.0), "goal: at most 1.2") == [False]
        assert holds(report(virtual_ms=200.0), "virtual time per its floor", "geographic") == [
            False
        ]
        assert holds(report(answered_per_s=9000.0), "timestamps/s, geographic, 10,000") == [False]

    def test_the_highest_rate_is_told_that_all_keep_up_with(self) -> None:
        known = {each.name: each.value for each in report().findings if "highest rate" in each.name}
        assert list(known.values()) == [10_000, 20_000]
        assert ["no higher one" in name for name in known] == [True, False]
        assert not line_row("beyond", "spray", unsent=1).keeps_up

    def test_every_load_is_answered_and_our_order_holds(self) -> None:
        assert report().kept
        assert not report(missing=1).kept
        assert not report(broken=("x inverts",)).kept
        assert holds(report(broken=("x inverts",)), "schedules that stall or invert, ours") == [
            False
        ]

    def test_everything_is_plain_json(self) -> None:
        told = json.loads(json.dumps(report().to_json(series=True), allow_nan=False))
        assert {row["part"] for row in told["rows"]} == {
            "rates",
            "beyond",
            "subscriptions",
            "placement",
        }
        assert told["part_seconds"] == dict.fromkeys(PARTS, 60.0)
        assert all(goal["kept"] for goal in told["goals"])
        assert len(told["sizes"]) == 4 * len(FULL.sizes.each)

    def test_page_and_pictures_have_every_part(self, tmp_path: Path) -> None:
        pictures = plots.draw(report(), tmp_path)
        names = {*PARTS, "sizes-2", "rates-2", "rates-3", "subscriptions-2"}
        assert {path.stem for path in pictures} == names
        page = report().page(pictures)
        assert all(f"| {each.name} | " in page for each in report().findings)
        assert all(f"({path.name})" in page for path in pictures)

    def test_axes_begin_at_zero_and_show_everything(self) -> None:
        found = report()
        for name, figure in ordering_plots.of(found.sizes, found.runs, found.rows).items():
            for axis in figure.axes:
                assert axis.get_yscale() == axis.get_xscale() == "linear"
                assert axis.get_ylim()[0] == 0.0, name
                shown = [bar.get_height() for bar in axis.patches]
                shown += [value for line in axis.lines for value in line.get_ydata()]
                assert axis.get_ylim()[1] > max(shown) > 0, name

    def test_page_and_pictures_are_made_again_from_the_figures(self, tmp_path: Path) -> None:
        whole = report()
        whole.save(tmp_path)
        page, *again = ordering_plots.again(tmp_path)
        first = plots.draw(whole, tmp_path / "first")
        assert [path.name for path in again] == [path.name for path in first]
        for path in first:
            assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name
        assert page.read_text() == whole.page(first)

    def test_figures_have_five_digits(self) -> None:
        assert short(line_row("rates", "spray", mean_ms=123.456789))["mean_ms"] == 123.46

    def test_an_unknown_part_is_refused(self) -> None:
        with pytest.raises(MisuseError, match="unknown part 'weather'; choose from sizes"):
            OrderingPlan(parts=("weather",))

    def test_what_there_is_no_time_for_is_told(self) -> None:
        found = report()
        assert "no time" not in found.setting
        cut = OrderingReport(found.began, 1.0, MACHINE, QUICK, {}, ("rates, spray",))
        assert "There was no time for: rates, spray." in cut.setting
