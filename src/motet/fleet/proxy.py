"""A proxy for one link, which can cut, stall and heal it.

The broker that dials gets our address instead of its neighbour's. We see every connection of the
link begin and end, so that no failure goes unnoticed, whatever its cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable

from motet.fleet.process import HOST

CHUNK_BYTES = 64 * 1024
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER without a time: closing sends a reset, as the successor of a dead host would."""


class LinkProxy:
    """`lost` is called whenever a connection that carried the link has ended."""

    def __init__(self, target_port: int, lost: Callable[[], None]) -> None:
        self.port = 0
        self.changes = 0
        """Grows whenever a connection begins or ends."""
        self._target_port = target_port
        self._lost = lost
        self._is_cut = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._pairs: list[tuple[StreamWriter, StreamWriter]] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def connected(self) -> bool:
        return bool(self._pairs)

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    # ── faults ───────────────────────────────────────────────────────────────────────────

    def cut(self) -> None:
        """Reset all connections, on both sides, and every new one."""
        self._is_cut = True
        for pair in self._pairs:
            for writer in pair:
                _reset(writer)

    def stall(self) -> None:
        """Accept connections, and forward nothing."""
        self._flows.clear()

    def heal(self) -> None:
        self._is_cut = False
        self._flows.set()

    # ── one connection ───────────────────────────────────────────────────────────────────

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            # Only `close` cancels us; asyncio would report that as an error of the handler.
            with contextlib.suppress(asyncio.CancelledError):
                await self._carry(reader, writer)
        finally:
            self._serving.discard(task)

    async def _carry(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self._is_cut:
            _reset(writer)
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            _reset(writer)
            return
        pair = (writer, far_writer)
        if self._is_cut:  # while we were connecting
            for end in pair:
                _reset(end)
            return
        self._pairs.append(pair)
        self.changes += 1
        pumps = [
            asyncio.ensure_future(self._pump(reader, far_writer)),
            asyncio.ensure_future(self._pump(far_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in pair:
                end.close()  # after all bytes are written: a last frame must arrive
            self._pairs.remove(pair)
            self.changes += 1
            self._lost()

    async def _pump(self, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
            await self._flows.wait()


def _reset(writer: StreamWriter) -> None:
    underneath = writer.get_extra_info("socket")
    if underneath is not None:
        with contextlib.suppress(OSError):
            underneath.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
