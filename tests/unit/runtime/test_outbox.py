"""What waits for the journal: in order, and within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from msgspec import Raw

from motet.broker.driver.contact import Outbox, TrafficCounters
from motet.protocol.cell.messages import MemberFrame
from motet.protocol.contract import Fact
from motet.protocol.delivery.messages import Delivered, Knowledge
from motet.protocol.delivery.spans import Span
from motet.protocol.frames import Frame
from motet.protocol.link.messages import Control, Publications
from motet.protocol.publication import Publication
from motet.protocol.routing.messages import ClientGone
from motet.protocol.session.messages import Deliver, Delivery, Done
from motet.runtime.codec import decode
from motet.runtime.transport import Connection
from tests.unit.runtime.fakes import Bench, SlowJournal

BOUND_BYTES = 64 * 1024


class Sink:
    """A connection whose other side reads at once."""

    def __init__(self) -> None:
        self.backlog_bytes = 0
        self.frames: list[Frame] = []

    def send(self, bodies: Sequence[bytes]) -> None:
        self.frames += [decode(body) for body in bodies]


def made() -> tuple[Outbox, Sink]:
    sink = Sink()
    return Outbox(cast(Connection, sink), BOUND_BYTES, TrafficCounters()), sink


def publication(number: int, size_bytes: int) -> Publication:
    return Publication("p", number, Raw(b"\xc6" + size_bytes.to_bytes(4) + bytes(size_bytes)))


def delivered(number: int, size_bytes: int) -> Frame:
    return Deliver([Delivery((1,), publication(number, size_bytes))])


def forwarded(number: int, size_bytes: int) -> Frame:
    return Publications(number, 0, [publication(number, size_bytes)])


@pytest.mark.parametrize("make", [delivered, forwarded])
@pytest.mark.parametrize("size_bytes", [1, 255, 10_000, BOUND_BYTES])
def test_events_behind_a_frame_that_waits_are_bounded_and_counted(
    make: type, size_bytes: int
) -> None:
    outbox, sink = made()
    outbox.put(Done(1), 1, 0)
    count = 3 * BOUND_BYTES // size_bytes
    for number in range(1, count + 1):
        assert not outbox.put(make(number, size_bytes), 0, 0)
    outbox.put(Done(2), 2, 0)
    assert outbox.dropped > 0
    outbox.release(2)
    outbox.flush()
    assert [frame for frame in sink.frames if type(frame) is Done] == [Done(1), Done(2)]
    arrived = sum(len(f.batch) for f in sink.frames if isinstance(f, Deliver | Publications))
    assert arrived + outbox.dropped == count
    assert 0 < arrived * size_bytes <= BOUND_BYTES + size_bytes


def test_a_client_is_told_what_it_lost_while_the_journal_was_slow() -> None:
    outbox, sink = made()
    outbox.put(Done(1), 1, 0)
    for number in range(4):
        outbox.put(delivered(number, BOUND_BYTES), 0, 0)
    outbox.release(1)
    outbox.flush()
    last = sink.frames[-1]
    assert isinstance(last, Deliver)
    assert last.dropped == outbox.dropped == 3


def test_once_released_there_is_room_again() -> None:
    outbox, _ = made()
    for turn in range(1, 4):
        outbox.put(Done(turn), turn, turn - 1)
        outbox.put(forwarded(turn, BOUND_BYTES), 0, turn - 1)
        outbox.release(turn)
        outbox.flush()
    assert outbox.dropped == 0


def test_bytes_unread_by_the_peer_count_towards_the_bound() -> None:
    outbox, sink = made()
    sink.backlog_bytes = BOUND_BYTES + 1
    outbox.put(Done(1), 1, 0)
    outbox.put(forwarded(1, 1), 0, 0)
    assert outbox.dropped == 1


def test_events_are_counted_however_they_are_delivered() -> None:
    sink, traffic = Sink(), TrafficCounters()
    outbox = Outbox(cast(Connection, sink), BOUND_BYTES, traffic)
    batch = [publication(1, 1), publication(2, 1)]
    known = Knowledge("B1.1", Span(1, 2, [1, 2], batch))
    frames: list[Frame] = [Delivered("B1.1", 2, [1, 2], batch), known]
    frames += [MemberFrame("B1", 0, 1, 1, 0, 0, known), delivered(1, 1), forwarded(1, 1)]
    for frame in frames:
        outbox.put(frame, 0, 0)
    outbox.flush()
    assert traffic.events_out == 2 + 2 + 2 + 1 + 1


def test_frames_and_control_messages_are_counted_by_kind() -> None:
    sink, traffic = Sink(), TrafficCounters()
    outbox = Outbox(cast(Connection, sink), BOUND_BYTES, traffic)
    gone = ClientGone("c", "B1-1")
    for frame in (Control(1, (gone, gone)), Done(1), Control(3, (gone,)), forwarded(1, 1)):
        outbox.put(frame, 0, 0)
    outbox.flush()
    counted = {"Control": 2, "ClientGone": 3, "Done": 1, "Publications": 1}
    assert traffic.by_kind() == counted


async def test_a_durable_group_touches_only_waiting_connections() -> None:
    released: list[int] = []

    async with Bench(journal=SlowJournal()) as bench:
        assert bench.journal is not None
        idle, waiting = bench.dial_in(), bench.dial_in()
        for number, contact in bench.driver.contacts.items():
            original = contact.outbox.release

            def release(durable: int, number: int = number, original=original) -> None:  # type: ignore[no-untyped-def]
                released.append(number)
                original(durable)

            contact.outbox.release = release  # type: ignore[method-assign]
        bench.journal.append([Fact(0.0, "it happened")])
        bench.driver._put(bench.driver.contacts[2], Done(1), 1)
        bench.journal.sync()
        assert (released, idle.frames, waiting.frames) == ([2], [], [Done(1)])
        bench.journal.append([Fact(0.0, "it happened again")])
        bench.journal.sync()
        assert released == [2]
