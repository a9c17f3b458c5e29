"""The driver, on a core that does what the test says."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import pairwise
from unittest.mock import patch

import msgspec
import pytest

from motet.broker.core.records import encode as encode_fact
from motet.broker.driver.driver import SHORTEST_S, BrokerDriver, behind_the_rest
from motet.broker.driver.pubend import VolatilePubend
from motet.errors import DiskFailed, InvariantError, ProtocolError
from motet.model import Filter, OpId
from motet.protocol.contract import (
    CancelTimer,
    CheckStaged,
    Close,
    Closed,
    Dialled,
    Fact,
    Input,
    LogStart,
    Output,
    Persisted,
    Received,
    SetTimer,
    TimerFired,
)
from motet.protocol.delivery.stream import ReadWanted
from motet.protocol.frames import Beat
from motet.protocol.link.messages import Inquire, LinkHello, Publications
from motet.protocol.publication import Publication
from motet.protocol.session.messages import (
    ClientHello,
    CommitRequest,
    Deliver,
    Delivery,
    Done,
    Farewell,
    Goodbye,
    Publish,
    Published,
    Refusal,
    Status,
    StatusRequest,
)
from motet.runtime.clock import SteadyClock
from motet.runtime.codec import encode
from motet.runtime.redial import FIRST_S
from motet.runtime.transport import MAX_FRAME_BYTES
from tests.unit.runtime.fakes import Bench, SlowJournal
from tests.waiting import PATIENCE_S, eventually

BODY = msgspec.Raw(b"\x92\x80\xc4\x00")
HELLO = ClientHello(1, "c")
FACT = Fact(0.0, "it happened")


def delivery(sequence: int) -> Delivery:
    return Delivery((1,), Publication("p", sequence, BODY))


def on_publish(make: Callable[[Received, Publish], Output]) -> Callable[[Input], Output]:
    def answer(given: Input) -> Output:
        if isinstance(given, Received) and isinstance(given.frame, Publish):
            return make(given, given.frame)
        return Output()

    return answer


async def test_the_core_is_told_where_it_listens() -> None:
    async with Bench() as bench:
        assert bench.core.address == bench.driver.address != ""


# ── turns ────────────────────────────────────────────────────────────────────────────────


async def test_connections_are_numbered_upwards_and_closed_once() -> None:
    async with Bench() as bench:
        first, second = bench.dial_in(), bench.dial_in()
        second.hear(HELLO)
        first.hear(HELLO)
        first.handler.closed("gone")
        assert bench.core.inputs == [Received(2, HELLO), Received(1, HELLO), Closed(1)]
        assert list(bench.driver.contacts) == [2]


async def test_one_read_is_one_write_per_connection_in_the_order_of_the_steps() -> None:
    def answer(given: Input) -> Output:
        assert isinstance(given, Received)
        n = given.frame.op.sequence  # type: ignore[union-attr]
        return Output(send=[(1, Done(n)), (2, Done(n))], deliver=[(2, Done(n + 100))])

    async with Bench(answer) as bench:
        one, two = bench.dial_in(), bench.dial_in()
        one.hear(*(Inquire(OpId("c", "e", n)) for n in range(3)))
        assert one.writes == [[Done(0), Done(1), Done(2)]]
        assert two.writes == [[Done(0), Done(100), Done(1), Done(101), Done(2), Done(102)]]
        bench.core.answer = lambda _: Output()


async def test_reads_that_the_loop_takes_at_once_are_one_write_per_connection() -> None:
    def answer(given: Input) -> Output:
        assert isinstance(given, Received)
        return Output(send=[(2, Done(given.frame.op.sequence))])  # type: ignore[union-attr]

    async with Bench(answer, soon=behind_the_rest) as bench:
        one, two = bench.dial_in(), bench.dial_in()
        one.hear(Inquire(OpId("c", "e", 1)))
        two.hear(Inquire(OpId("c", "e", 2)))
        assert two.writes == []
        await eventually(lambda: bool(two.writes))
        one.hear(Inquire(OpId("c", "e", 3)))
        await eventually(lambda: len(two.writes) > 1)
        assert two.writes == [[Done(1), Done(2)], [Done(3)]]
        bench.core.answer = lambda _: Output()


async def test_publications_of_one_read_are_one_step_and_one_delivery() -> None:
    def answer(given: Received, frame: Publish) -> Output:
        batch = [delivery(frame.first + i) for i in range(len(frame.bodies))]
        last = frame.first + len(batch) - 1
        return Output(deliver=[(2, Deliver(batch)), (given.connection, Published(last))])

    async with Bench(on_publish(answer)) as bench:
        one, two = bench.dial_in(), bench.dial_in()
        one.hear(*(Publish(1 + n, [BODY]) for n in range(10)))
        assert len(bench.core.inputs) == 1
        assert one.writes == [[Published(10)]]
        (write,) = two.writes
        (deliver,) = write
        assert isinstance(deliver, Deliver)
        assert [each.publication.sequence for each in deliver.batch] == list(range(1, 11))


async def test_frames_for_a_connection_that_is_gone_are_forgotten() -> None:
    async with Bench(lambda _: Output(send=[(99, Done(1))], close=[Close(98, "", "")])) as bench:
        bench.dial_in().hear(HELLO)
        assert bench.driver.failure is None
        bench.core.answer = lambda _: Output()


async def test_beats_are_swallowed() -> None:
    async with Bench() as bench:
        bench.dial_in().hear(Beat(), Beat())
        assert bench.core.inputs == []


# ── the journal ──────────────────────────────────────────────────────────────────────────


def scripted(*outputs: Output) -> Callable[[Input], Output]:
    left = iter(outputs)
    return lambda _: next(left, Output())


async def slow_bench(*outputs: Output) -> Bench:
    bench = Bench(scripted(*outputs), SlowJournal())
    await bench.driver.start()
    return bench


async def test_the_driver_obeys_the_order_that_output_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reads come behind the step, `forgotten` and `confirm` when the facts are durable."""
    done: list[str] = []

    def noted(owner: object, method: str, field: str) -> None:
        original = getattr(owner, method)

        def note(*given: object) -> object:
            done.append(field)
            return original(*given)

        monkeypatch.setattr(owner, method, note)

    pubend, journal = VolatilePubend(lambda _: None), SlowJournal()
    everything = Output(
        confirm=7,
        forgotten=[("c", "e")],
        close=[Close(3, "Fenced", "another")],
        dial={},
        feed=[(4, Beat())],
        timers=[SetTimer(("a",), 0.0)],
        staged=[CheckStaged(1, "c", CommitRequest(1, "job", 0, (), Filter.parse("x = 1")))],
        reads=[ReadWanted("p", 1, 1, 1, 1)],
        log=[LogStart(1, OpId("c", "e", 1))],
        deliver=[(2, Done(2))],
        send=[(1, Done(1))],
        persist=[FACT],
    )
    async with Bench(scripted(everything), journal, pubend=pubend) as bench:
        one, two, three, four = (bench.dial_in() for _ in range(4))
        driver, outboxes = bench.driver, [c.outbox for c in bench.driver.contacts.values()]
        for owner, method, field in (
            (journal, "append", "persist"),
            (outboxes[0], "put", "send"),
            (outboxes[1], "put", "deliver"),
            (outboxes[3], "put", "feed"),
            (pubend, "append", "log"),
            (pubend, "read", "reads"),
            (driver._stagings, "carry", "staged"),
            (driver, "_set_timers", "timers"),
            (outboxes[2], "put", "close"),
            (driver._dialling, "aim", "dial"),
            (pubend, "forget", "forgotten"),
        ):
            noted(owner, method, field)
        one.hear(HELLO)
        carried = ["persist", "send", "deliver", "feed", "log", "staged", "timers", "close", "dial"]
        assert done == carried
        await eventually(lambda: "reads" in done)
        assert one.writes == two.writes == three.writes == []
        assert four.frames == [Beat()]
        journal.sync()
        assert done[-2:] == ["reads", "forgotten"]
        assert Persisted(7) in bench.core.inputs
        assert (one.frames, two.frames) == ([Done(1)], [Done(2)])
        assert three.farewell.error == "Fenced"
    stated = [field for field in Output.__struct_fields__ if field not in ("reads", "confirm")]
    assert [field for field in done if field != "reads"] == stated


async def test_nothing_of_an_output_leaves_before_its_facts_are_durable() -> None:
    bench = await slow_bench(
        Output(persist=[FACT], send=[(1, Done(1))], deliver=[(2, Done(2))]),
    )
    one, two = bench.dial_in(), bench.dial_in()
    one.hear(HELLO)
    assert bench.journal is not None
    assert bench.journal.appended == 1
    assert one.writes == two.writes == []
    bench.journal.sync()
    assert [each.payload for each in bench.journal.disk.read(1)] == [encode_fact(FACT)]
    assert one.writes == [[Done(1)]]
    assert two.writes == [[Done(2)]]
    await bench.driver.stop()


async def test_the_log_drops_no_tick_before_the_facts_behind_it_are_durable() -> None:
    """Tick 7 waits for the first fact, and tick 9 for the second."""

    class Recorded(VolatilePubend):
        dropped_upto = 0

        def acknowledged(self, tick: int) -> None:
            self.dropped_upto = max(self.dropped_upto, tick)

    pubend, journal = Recorded(lambda work: work()), SlowJournal()
    facts = scripted(Output(persist=[FACT]), Output(persist=[FACT]))
    bench = Bench(facts, journal, heartbeat_s=0.01, pubend=pubend)
    async with bench:
        connection = bench.dial_in()
        connection.hear(HELLO)
        bench.core.done_upto = 7
        await asyncio.sleep(0.05)
        assert pubend.dropped_upto == 0, "a crash now takes the fact"
        connection.hear(HELLO)
        bench.core.done_upto = 9
        journal.sync(1)
        await eventually(lambda: pubend.dropped_upto > 0)
        assert pubend.dropped_upto == 7
        await asyncio.sleep(0.05)
        assert pubend.dropped_upto == 7
        journal.sync()
        await eventually(lambda: pubend.dropped_upto == 9)


async def test_a_later_publication_never_overtakes_on_its_connection_but_passes_on_others() -> None:
    pub = Publications(1, 0, [Publication("p", 1, BODY)])
    bench = await slow_bench(
        Output(persist=[FACT], send=[(1, Done(1))]),
        Output(send=[(1, pub), (2, pub)]),
        Output(persist=[FACT], send=[(1, Done(2))]),
        Output(send=[(1, pub)]),
    )
    one, two = bench.dial_in(), bench.dial_in()
    for _ in range(4):
        one.hear(HELLO)
    assert one.writes == []
    assert [type(frame) for frame in two.frames] == [Publications]
    assert bench.journal is not None
    bench.journal.sync(1)
    assert [type(frame) for frame in one.frames] == [Done, Publications]
    bench.journal.sync(2)
    assert [type(frame) for frame in one.frames] == [Done, Publications, Done, Publications]
    await bench.driver.stop()


async def test_a_frame_about_durable_state_waits_for_all_earlier_facts() -> None:
    """A hello on a new connection says how much we have; all of that must be durable."""
    hello = LinkHello(1, "B", 1, 1, 7)
    bench = await slow_bench(Output(persist=[FACT]), Output(send=[(2, hello)]))
    one, two = bench.dial_in(), bench.dial_in()
    one.hear(HELLO)
    one.hear(HELLO)
    assert two.writes == []
    assert bench.journal is not None
    bench.journal.sync()
    assert two.frames == [hello]
    await bench.driver.stop()


async def test_a_close_comes_after_what_was_sent_before_it() -> None:
    bench = await slow_bench(
        Output(persist=[FACT], send=[(1, Done(1))]),
        Output(close=[Close(1, "Fenced", "another")]),
        Output(send=[(1, Done(2))]),
    )
    one, two = bench.dial_in(), bench.dial_in()
    for _ in range(3):
        two.hear(HELLO)
    assert one.writes == []
    assert one.closings == []
    assert bench.journal is not None
    bench.journal.sync()
    assert one.frames == [Done(1), Farewell("Fenced", "another")]
    assert one.closings
    await asyncio.sleep(0)
    assert bench.core.closed == [1]
    await bench.driver.stop()


async def test_stopping_makes_durable_and_says_what_was_held() -> None:
    bench = await slow_bench(Output(persist=[FACT], send=[(1, Done(1))]))
    one = bench.dial_in()
    one.hear(HELLO)
    await bench.driver.stop()
    assert one.frames == [Done(1), Farewell("Disconnected", "the broker stops")]


async def test_a_failed_journal_ends_the_broker_and_nothing_held_leaves() -> None:
    bench = await slow_bench(Output(persist=[FACT], send=[(1, Done(1))]))
    one = bench.dial_in()
    one.hear(HELLO)
    assert bench.journal is not None
    journal = bench.journal
    with patch.object(journal, "close") as close, patch.object(journal, "abandon") as abandon:
        journal.disk.fail()
        journal.sync()
        with pytest.raises(DiskFailed, match="disk"):
            await bench.driver.finished()
    assert [type(frame) for frame in one.frames] == [Farewell]
    assert (close.called, abandon.called) == (False, True)


async def test_a_failed_journal_also_ends_connections_whose_farewell_it_held() -> None:
    bench = await slow_bench(Output(persist=[FACT], close=[Close(1, "Fenced", "another")]))
    one = bench.dial_in()
    one.hear(HELLO)
    assert bench.journal is not None
    bench.journal.disk.fail()
    bench.journal.sync()
    with pytest.raises(DiskFailed, match="disk"):
        await asyncio.wait_for(bench.driver.finished(), PATIENCE_S)
    assert one.frames == []
    assert one.closings


async def test_a_journal_that_takes_no_facts_ends_the_broker() -> None:
    bench = await slow_bench(Output(send=[(1, Done(1))]), Output(persist=[FACT]))
    one = bench.dial_in()

    def full(_: object) -> int:
        raise OSError("disk full")

    assert bench.journal is not None
    bench.journal.append = full  # type: ignore[assignment, method-assign]
    one.hear(HELLO)
    one.hear(HELLO)
    with pytest.raises(InvariantError, match="disk full"):
        await bench.driver.finished()
    assert [type(frame) for frame in one.frames] == [Done, Farewell]


# ── misbehaviour ─────────────────────────────────────────────────────────────────────────


async def test_a_malformed_frame_costs_its_connection_only() -> None:
    async with Bench() as bench:
        bad, good = bench.dial_in(), bench.dial_in()
        bad.hear_bytes(b"\xc1")
        assert bad.farewell.error == "FrameError"
        assert bad.closings
        bad.hear(HELLO)
        good.hear(HELLO)
        await asyncio.sleep(0)
        assert bench.core.inputs == [Closed(1), Received(2, HELLO)]


async def test_frames_before_a_malformed_one_count() -> None:
    async with Bench() as bench:
        one = bench.dial_in()
        one.hear_bytes(encode(HELLO), b"nonsense", encode(Goodbye()))
        assert bench.core.inputs == [Received(1, HELLO), Closed(1)]


async def test_an_unreadable_hello_of_another_version_gets_a_version_error() -> None:
    async with Bench() as bench:
        one = bench.dial_in()
        one.hear_bytes(msgspec.msgpack.encode(["client", 9, {}]))
        assert one.farewell.error == "VersionError"


async def test_a_peer_error_of_the_core_closes_with_its_name() -> None:
    def answer(given: Input) -> Output:
        if isinstance(given, Received):
            raise ProtocolError("not now")
        return Output()

    async with Bench(answer) as bench:
        one = bench.dial_in()
        one.hear(HELLO, HELLO)
        assert one.frames == [Farewell("ProtocolError", "not now")]
        assert bench.core.inputs == [Received(1, HELLO), Closed(1)]
        assert bench.driver.failure is None


@pytest.mark.parametrize("failure", [InvariantError("broken"), ZeroDivisionError()])
async def test_any_other_exception_of_the_core_ends_the_broker(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(_: Input) -> Output:
        raise failure

    bench = Bench(answer)
    await bench.driver.start()
    one, two = bench.dial_in(), bench.dial_in()
    with caplog.at_level(logging.CRITICAL):
        one.hear(HELLO, HELLO)
    assert len(bench.core.inputs) == 1
    with pytest.raises(InvariantError, match="the broker failed"):
        await bench.driver.finished()
    assert one.farewell.error == two.farewell.error == "InvariantError"
    assert "Traceback" in caplog.text


async def test_a_failure_and_a_malformed_frame_in_one_read() -> None:
    def answer(_: Input) -> Output:
        raise ZeroDivisionError

    bench = Bench(answer)
    await bench.driver.start()
    one = bench.dial_in()
    one.hear_bytes(encode(HELLO), b"nonsense")
    with pytest.raises(InvariantError):
        await asyncio.wait_for(bench.driver.finished(), PATIENCE_S)
    assert one.closings


async def test_a_close_of_the_core_is_a_farewell_and_a_closed_input() -> None:
    def answer(given: Input) -> Output:
        return Output(close=[Close(1, "", "goodbye")]) if isinstance(given, Received) else Output()

    async with Bench(answer) as bench:
        one = bench.dial_in()
        one.hear(Goodbye(), Goodbye())
        assert one.frames == [Farewell("", "goodbye")]
        await asyncio.sleep(0)
        assert bench.core.inputs == [Received(1, Goodbye()), Closed(1)]


# ── the pulse ────────────────────────────────────────────────────────────────────────────


async def test_idle_connections_get_beats_and_silent_ones_are_closed() -> None:
    async with Bench(heartbeat_s=0.04) as bench:
        talking, silent = bench.dial_in(), bench.dial_in()
        talking.hear(HELLO)
        silent.hear(HELLO)

        def silent_is_closed() -> bool:
            talking.received_bytes += 1  # not even a whole frame
            return bool(silent.closings)

        await eventually(silent_is_closed)
        assert silent.farewell.error == "Disconnected"
        assert Beat() in silent.frames
        assert not talking.closings
        assert talking.frames.count(Beat()) >= 2
        assert 2 in bench.core.closed


async def test_silence_is_at_least_a_second_in_which_the_broker_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here 40 ticks of 25 ms. However late a tick comes, it counts once: who cannot tick cannot
    read either."""

    async def never(_: BrokerDriver) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(BrokerDriver, "_ticking", never)
    async with Bench(heartbeat_s=0.1) as bench:
        silent = bench.dial_in()
        silent.hear(HELLO)
        for tick in range(41):
            assert not silent.closings
            bench.driver._tick(1000.0 * tick)
        assert not silent.closings
        bench.driver._tick(42_000.0)
        assert silent.farewell == Farewell("Disconnected", "nothing was heard for 1 s")


async def test_a_peer_without_a_hello_is_closed_but_may_ask_for_the_status() -> None:
    async with Bench(heartbeat_s=0.04, hello_s=0.06) as bench:
        mute, asking = bench.dial_in(), bench.dial_in()

        def mute_is_closed() -> bool:
            asking.hear(StatusRequest())
            mute.hear(Beat())
            return bool(mute.closings)

        await eventually(mute_is_closed)
        assert mute.farewell == Farewell("ProtocolError", "no hello within 0.06 s")
        assert not asking.closings


# ── slow consumers ───────────────────────────────────────────────────────────────────────


async def test_a_full_backlog_drops_events_counts_them_and_tells() -> None:
    answers = Output(deliver=[(1, Deliver([delivery(1), delivery(2)])), (1, Done(1))])
    async with Bench(lambda g: answers if isinstance(g, Received) else Output()) as bench:
        one = bench.dial_in()
        one.backlog_bytes = 65 * 1024 * 1024
        one.hear(HELLO)
        assert one.writes == [[Done(1)]]
        (described,) = bench.driver.status()["connections"]
        assert described["dropped_events"] == 2
        assert described["backlog_bytes"] == one.backlog_bytes
        one.backlog_bytes = 0
        one.hear(Goodbye())
        deliver = one.frames[1]
        assert isinstance(deliver, Deliver)
        assert deliver.dropped == 2
        assert len(deliver.batch) == 2
        assert bench.driver.status()["dropped_events"] == 2


async def test_a_client_that_has_room_again_is_told_what_it_lost() -> None:
    answers = Output(deliver=[(1, Deliver([delivery(1)]))])
    async with Bench(lambda g: answers if isinstance(g, Received) else Output()) as bench:
        one = bench.dial_in()
        one.hear(HELLO)
        one.backlog_bytes = 65 * 1024 * 1024
        one.hear(Goodbye())
        one.backlog_bytes = 0
        one.handler.writable()
        one.handler.writable()
        assert one.frames[1:] == [Deliver([], 1)]


async def test_a_client_that_takes_no_control_either_is_closed() -> None:
    async with Bench(heartbeat_s=0.02, max_backlog_bytes=1000) as bench:
        one = bench.dial_in()
        one.hear(HELLO)
        one.backlog_bytes = 2001
        await eventually(lambda: bool(one.closings))
        assert one.farewell.error == "SlowConsumer"
        assert "does not read" in one.farewell.text


async def test_links_lose_publications_but_are_not_closed() -> None:
    pubs = Publications(1, 0, [Publication("p", 1, BODY)])
    async with Bench(
        lambda g: Output(send=[(1, pubs)]) if isinstance(g, Received) else Output(),
        heartbeat_s=0.2,
        max_backlog_bytes=1000,
    ) as bench:
        one = bench.dial_in()
        one.backlog_bytes = 2001
        one.hear(LinkHello(1, "B", 1, 0, 0))
        assert one.writes == []
        await asyncio.sleep(0.2)
        assert not one.closings
        assert bench.driver.status()["dropped_events"] == 1


# ── frames that do not fit ───────────────────────────────────────────────────────────────


def too_large(given: Input) -> Output:
    if not isinstance(given, Received):
        return Output()
    published = Published(2, (Refusal(2, "EventError", "y" * MAX_FRAME_BYTES),))
    return Output(deliver=[(1, Done(1)), (1, published), (1, Done(2)), (2, Done(3))])


async def test_a_frame_that_cannot_be_sent_ends_its_connection_and_no_other() -> None:
    async with Bench(too_large) as bench:
        one, two = bench.dial_in(), bench.dial_in()
        one.hear(HELLO)
        assert one.frames[0] == Done(1), "what stood before it is said"
        assert one.farewell.error == "FrameError"
        assert "a Published of" in one.farewell.text
        assert len(one.frames) == 2, "nothing behind it is"
        assert bench.core.closed == [1]
        assert two.frames == [Done(3)]
        assert bench.driver.failure is None


async def test_a_farewell_is_sent_even_after_a_frame_that_does_not_fit() -> None:
    def answer(given: Input) -> Output:
        output = too_large(given)
        output.close.extend([Close(1, "Fenced", "another one")] if output.deliver else [])
        return output

    async with Bench(answer) as bench:
        one = bench.dial_in()
        one.hear(HELLO)
        assert one.frames == [Done(1), Farewell("Fenced", "another one")]
        assert one.closings == ["Fenced: another one"]
    journal = SlowJournal()

    def durably(given: Input) -> Output:
        output = answer(given)
        output.persist.extend([FACT] if output.close else [])
        return output

    async with Bench(durably, journal) as bench:
        one = bench.dial_in()
        one.hear(HELLO)
        assert one.frames == []
        journal.sync()
        assert one.frames == [Done(1), Farewell("Fenced", "another one")]


async def test_a_reason_that_quotes_too_much_is_cut() -> None:
    def answer(given: Input) -> Output:
        text = "x" * (MAX_FRAME_BYTES + 1)
        return Output(close=[Close(1, "E", text)]) if isinstance(given, Received) else Output()

    async with Bench(answer) as bench:
        one = bench.dial_in()
        one.hear(HELLO)
        assert 100 < len(one.farewell.text) <= 1000


# ── timers ───────────────────────────────────────────────────────────────────────────────


async def test_timers_fire_once_never_early_and_are_replaced_and_cancelled() -> None:
    clock = SteadyClock()
    due: list[float] = []
    fired: list[tuple[object, float]] = []

    def answer(given: Input) -> Output:
        if isinstance(given, TimerFired):
            fired.append((given.key, clock.now()))
        if due:
            return Output()
        now = clock.now()
        due.append(now + 0.3)
        return Output(
            timers=[
                SetTimer(("a",), now + 100),
                SetTimer(("b",), now + 0.1),
                SetTimer(("a",), now + 0.3),
                CancelTimer(("b",)),
                CancelTimer(("never set",)),
                SetTimer(("past",), now - 5),
            ]
        )

    async with Bench(answer) as bench:
        bench.dial_in().hear(HELLO)
        await eventually(lambda: len(fired) == 2)
        await asyncio.sleep(0.02)
    assert [key for key, _ in fired] == [("past",), ("a",)]
    assert fired[1][1] >= due[0] - 0.001  # two clocks were made at two moments


# ── dialling ─────────────────────────────────────────────────────────────────────────────


async def test_neighbours_are_dialled_again_and_again() -> None:
    async with Bench(dial={"B2": "fake://B2"}) as bench:
        await eventually(lambda: len(bench.transport.dialled) == 1)
        assert bench.core.inputs == [Dialled(1, "B2")]
        first = bench.transport.dialled[0]
        first.hear(LinkHello(1, "B2", 1, 0, 0, True))
        first.handler.closed("cut")
        await eventually(lambda: len(bench.transport.dialled) == 2)
        assert bench.core.inputs[2:] == [Closed(1), Dialled(2, "B2")]


async def test_a_neighbour_that_is_not_there_is_tried_with_patience() -> None:
    bench = Bench(dial={"B2": "fake://B2"})
    tried_at: list[float] = []

    def refuse(_: str) -> bool:
        tried_at.append(time.monotonic())
        return False

    bench.transport.answers = refuse
    async with bench:
        await eventually(lambda: len(tried_at) >= 4)
        pauses = [later - sooner for sooner, later in pairwise(tried_at)]
        for number, pause_s in enumerate(pauses):
            assert pause_s >= 0.5 * FIRST_S * 2**number - SHORTEST_S
        bench.transport.answers = lambda _: True
        await eventually(lambda: bool(bench.transport.dialled))


async def test_a_farewell_of_a_neighbour_is_logged_not_stepped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Bench() as bench:
        one = bench.dial_in()
        one.hear(Farewell("UnknownBroker", "who are you?"))
        assert "who are you?" in caplog.text
        await asyncio.sleep(0)
        assert bench.core.inputs == [Closed(1)]


# ── status and the end ───────────────────────────────────────────────────────────────────


async def test_the_status_joins_the_core_s_and_the_driver_s() -> None:
    async with Bench() as bench:
        one = bench.dial_in()
        one.hear(HELLO, Publish(1, [BODY] * 3), StatusRequest())
        status = one.frames[0]
        assert isinstance(status, Status)
        state = status.state
        assert state["broker"] == "fake"
        assert state["process"]["address"] == "fake://here"
        assert state["process"]["engine"] in ("native", "python")
        assert state["traffic"]["events_in"] == 3
        assert state["traffic"]["frames_in"] == 3
        assert state["sent"] == {}
        assert state["connections_total"] == 1
        assert state["connections"][0]["name"] == "c"


async def test_a_status_that_fails_is_a_failure_of_ours() -> None:
    bench = Bench()
    await bench.driver.start()
    one = bench.dial_in()

    def broken(*_: object) -> dict[str, object]:
        raise KeyError("a bug")

    bench.core.status = broken  # type: ignore[method-assign]
    one.hear(StatusRequest())
    with pytest.raises(InvariantError, match="a bug"):
        await bench.driver.finished()


async def test_all_peers_are_notified_when_the_broker_stops() -> None:
    bench = Bench()
    await bench.driver.start()
    one = bench.dial_in()
    await bench.driver.stop()
    await bench.driver.stop()
    await bench.driver.finished()
    assert one.frames == [Farewell("Disconnected", "the broker stops")]


async def test_asking_for_the_status_in_bulk_is_refused() -> None:
    async with Bench() as bench:
        one = bench.dial_in()
        one.hear(*[StatusRequest()] * 9)
        assert one.farewell.error == "ProtocolError"
        assert len(one.frames) == 9, "eight answers, and the last word"
        other = bench.dial_in()
        other.hear(StatusRequest())
        assert type(other.frames[0]).__name__ == "Status", "others are served"
