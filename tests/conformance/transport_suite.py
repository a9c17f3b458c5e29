"""What every transport must do. Subclass `TransportSuite` and give it an address."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from motet.errors import AddressError, Disconnected, FrameError
from motet.runtime.addresses import transport_for
from motet.runtime.transport import (
    HIGH_MARK_BYTES,
    MAX_FRAME_BYTES,
    Connection,
    Handler,
    Listening,
    Transport,
)
from tests.waiting import eventually


class Recorder(Handler):
    """A handler that writes down what happens to it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.bodies: list[bytes] = []
        self.reads = 0
        self.closings: list[str] = []
        self.writable_calls = 0
        self.on_frames: Callable[[Sequence[bytes]], None] | None = None

    def frames(self, bodies: Sequence[bytes]) -> None:
        assert not self.closings, "frames after closed"
        assert bodies, "a read without a frame"
        self.reads += 1
        self.bodies.extend(bodies)
        if self.on_frames is not None:
            self.on_frames(bodies)

    def closed(self, reason: str) -> None:
        self.closings.append(reason)

    def writable(self) -> None:
        assert not self.closings, "writable after closed"
        self.writable_calls += 1


class Pair:
    """A listener, and the two ends of one connection to it."""

    def __init__(self, listening: Listening, near: Recorder, far: Recorder) -> None:
        self.listening = listening
        self.near = near
        self.far = far


class TransportSuite:
    address: str
    """Where to listen; two tests in a row may use it."""

    malformed: Sequence[str] = ()
    nobody: str
    sockets: bool

    def transport(self, address: str) -> Transport:
        return transport_for(address)

    @contextlib.asynccontextmanager
    async def pair(self) -> AsyncIterator[Pair]:
        transport = self.transport(self.address)
        accepted: list[Recorder] = []
        dialled: list[Recorder] = []

        def accept(connection: Connection) -> Handler:
            accepted.append(Recorder(connection))
            return accepted[-1]

        def dial(connection: Connection) -> Handler:
            dialled.append(Recorder(connection))
            return dialled[-1]

        listening = await transport.listen(self.address, accept)
        try:
            connection = await transport.connect(listening.address, dial)
            assert dialled[0].connection is connection
            await eventually(lambda: bool(accepted))
            yield Pair(listening, dialled[0], accepted[0])
        finally:
            await listening.close()
            for recorder in accepted + dialled:
                recorder.connection.abort()
            await eventually(lambda: all(r.closings for r in accepted + dialled))

    # ── frames ───────────────────────────────────────────────────────────────────────────

    async def test_frames_arrive_in_order_both_ways(self) -> None:
        async with self.pair() as pair:
            there = [b"there %d" % i for i in range(500)]
            back = [b"back %d" % i for i in range(500)]
            for i in range(0, 500, 7):
                pair.near.connection.send(there[i : i + 7])
                pair.far.connection.send(back[i : i + 7])
            await eventually(lambda: len(pair.far.bodies) == 500 and len(pair.near.bodies) == 500)
            assert pair.far.bodies == there
            assert pair.near.bodies == back

    async def test_many_small_frames_come_up_in_few_reads(self) -> None:
        async with self.pair() as pair:
            bodies = [b"%d" % i for i in range(50_000)]
            pair.near.connection.send(bodies)
            await eventually(lambda: len(pair.far.bodies) == len(bodies))
            assert pair.far.bodies == bodies
            assert pair.far.reads < 100

    async def test_empty_frames_count(self) -> None:
        async with self.pair() as pair:
            pair.near.connection.send([])
            pair.near.connection.send([b"", b"x", b"", b""])
            await eventually(lambda: len(pair.far.bodies) == 4)
            assert pair.far.bodies == [b"", b"x", b"", b""]

    async def test_nothing_arrives_before_send_returns(self) -> None:
        async with self.pair() as pair:
            pair.near.connection.send([b"x"])
            assert pair.far.bodies == []

    async def test_a_handler_may_answer_inside_frames(self) -> None:
        async with self.pair() as pair:
            pair.far.on_frames = pair.far.connection.send
            pair.near.connection.send([b"a", b"b"])
            await eventually(lambda: len(pair.near.bodies) == 2)
            assert pair.near.bodies == [b"a", b"b"]

    @pytest.mark.parametrize("size", [64 * 1024 - 4, 64 * 1024, 300_000, MAX_FRAME_BYTES])
    async def test_large_frames_up_to_the_limit(self, size: int) -> None:
        async with self.pair() as pair:
            large = bytes(range(256)) * (size // 256) + bytes(size % 256)
            pair.near.connection.send([b"before", large, b"after"])
            pair.near.connection.send([b"last"])
            await eventually(lambda: len(pair.far.bodies) == 4)
            assert pair.far.bodies == [b"before", large, b"after", b"last"]

    async def test_a_frame_above_the_limit_is_refused_and_nothing_of_it_is_sent(self) -> None:
        async with self.pair() as pair:
            with pytest.raises(FrameError, match="limit"):
                pair.near.connection.send([b"first", bytes(MAX_FRAME_BYTES + 1)])
            pair.near.connection.send([b"second"])
            await eventually(lambda: bool(pair.far.bodies))
            assert pair.far.bodies == [b"second"]

    # ── the end ──────────────────────────────────────────────────────────────────────────

    async def test_close_writes_what_was_sent_before(self) -> None:
        async with self.pair() as pair:
            bodies = [bytes(100_000)] * 30
            pair.near.connection.send(bodies)
            pair.near.connection.close("enough")
            await eventually(lambda: bool(pair.far.closings and pair.near.closings))
            assert len(pair.far.bodies) == 30
            assert pair.near.closings == ["enough"]
            assert len(pair.far.closings) == 1

    async def test_a_closed_connection_delivers_its_last_frame_to_a_peer_that_keeps_sending(
        self,
    ) -> None:
        async with self.pair() as pair:
            for _ in range(50):
                pair.near.connection.send([bytes(10_000)])
            pair.far.connection.send([b"goodnight"])
            pair.far.connection.close()
            for _ in range(50):
                pair.near.connection.send([bytes(10_000)])
            await eventually(lambda: bool(pair.near.closings))
            assert pair.near.bodies == [b"goodnight"]

    async def test_no_frame_comes_up_after_close_on_this_side(self) -> None:
        async with self.pair() as pair:
            pair.far.connection.close()
            pair.near.connection.send([b"too late"])
            await eventually(lambda: bool(pair.far.closings))
            assert pair.far.bodies == []

    async def test_closed_is_called_once_if_both_ends_close_repeatedly(self) -> None:
        async with self.pair() as pair:
            for end in (pair.near, pair.far):
                end.connection.close("one")
                end.connection.close("two")
                end.connection.abort("three")
                end.connection.abort("four")
            await eventually(lambda: bool(pair.far.closings and pair.near.closings))
            await asyncio.sleep(0.02)
            assert pair.near.closings == ["one"]
            assert pair.far.closings == ["one"]

    async def test_send_and_close_after_the_end_do_nothing(self) -> None:
        async with self.pair() as pair:
            pair.near.connection.abort("gone")
            await eventually(lambda: bool(pair.far.closings and pair.near.closings))
            for end in (pair.near, pair.far):
                end.connection.send([b"x"])
                end.connection.close()
                end.connection.pause_reading()
                end.connection.resume_reading()
                assert end.connection.backlog_bytes == 0
                assert not end.connection.congested

    async def test_a_handler_may_close_inside_frames(self) -> None:
        async with self.pair() as pair:
            pair.far.on_frames = lambda _: pair.far.connection.close("inside")
            pair.near.connection.send([b"a"])
            await asyncio.sleep(0.01)
            pair.near.connection.send([b"b"])
            await eventually(lambda: bool(pair.far.closings and pair.near.closings))
            assert pair.far.bodies == [b"a"]
            assert pair.far.closings == ["inside"]

    async def test_closing_ends_in_bounded_time_if_the_peer_does_not_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("motet.runtime.tcp", "motet.runtime.inproc"):
            monkeypatch.setattr(f"{module}.CLOSE_BOUND_S", 0.1)
        async with self.pair() as pair:
            pair.far.connection.pause_reading()
            for _ in range(20):
                pair.near.connection.send([bytes(1_000_000)])
            pair.near.connection.close("tired")
            await eventually(lambda: bool(pair.near.closings))
            assert pair.near.closings == ["tired"]

    async def test_a_closed_listener_accepts_no_connection_and_keeps_existing_ones(self) -> None:
        async with self.pair() as pair:
            await pair.listening.close()
            with pytest.raises(Disconnected):
                await self.transport(self.address).connect(pair.listening.address, Recorder)
            pair.near.connection.send([b"still here"])
            await eventually(lambda: bool(pair.far.bodies))
            again = await self.transport(self.address).listen(pair.listening.address, Recorder)
            await again.close()

    # ── back-pressure ────────────────────────────────────────────────────────────────────

    async def test_a_reader_that_stops_shows_as_backlog_and_recovers(self) -> None:
        async with self.pair() as pair:
            pair.far.connection.pause_reading()
            sent = 0
            while pair.near.connection.backlog_bytes < 3 * HIGH_MARK_BYTES:
                pair.near.connection.send([bytes(200_000)])
                sent += 1
                if sent % 10 == 0:
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            assert pair.near.connection.congested
            assert pair.near.connection.backlog_bytes > 2 * HIGH_MARK_BYTES
            assert pair.near.writable_calls == 0
            pair.far.connection.resume_reading()
            await eventually(lambda: len(pair.far.bodies) == sent)
            await eventually(lambda: pair.near.writable_calls == 1)
            assert not pair.near.connection.congested
            assert pair.near.connection.backlog_bytes == 0

    # ── addresses ────────────────────────────────────────────────────────────────────────

    async def test_an_address_in_use_is_named(self) -> None:
        async with self.pair() as pair:
            with pytest.raises(AddressError, match=r"in use.*choose another"):
                await self.transport(self.address).listen(pair.listening.address, Recorder)

    async def test_malformed_addresses(self) -> None:
        assert self.malformed
        for address in self.malformed:
            with pytest.raises(AddressError):
                await self.transport(address).listen(address, Recorder)
            with pytest.raises(AddressError):
                await self.transport(address).connect(address, Recorder)

    async def test_connecting_fails_if_no_broker_listens(self) -> None:
        with pytest.raises(Disconnected, match="no broker answers"):
            await self.transport(self.address).connect(self.nobody, Recorder)
