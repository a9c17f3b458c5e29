"""Connections to sites: one for each that is needed, made again when it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from motet.client.line.line import Line, dial
from motet.client.session.state import Failure, error_of
from motet.errors import (
    ClosedError,
    MisuseError,
    MotetError,
    NoClientsHere,
    NotOffered,
    PeerError,
)
from motet.protocol.frames import Beat, Frame
from motet.protocol.sequencing.messages import OrderWelcome
from motet.protocol.session.messages import Farewell
from motet.runtime.codec import decode, encode
from motet.runtime.redial import Backoff

log = logging.getLogger("motet.ordering")

LONGEST_PAUSE_S: Final = 0.5
"""Between two attempts: a standby takes over within seconds, and publishers wait for it."""
DIAL_S: Final = 2.0
SEPARATOR: Final = ","


def addresses_of(text: str) -> list[str]:
    """A site and its standby may be named together: `motet://one:7720,motet://two:7720`."""
    return [each.strip() for each in text.split(SEPARATOR) if each.strip()]


class Hearer(Protocol):
    def site_connected(self, site: SiteConnection) -> None: ...
    def site_heard(self, site: SiteConnection, frames: list[Frame]) -> None: ...
    def site_closed(self, site: SiteConnection, refusal: str) -> None: ...


class SiteConnection:
    """`name` is empty until the site at the first address has said it."""

    def __init__(self, name: str, addresses: Sequence[str], hearer: Hearer) -> None:
        self.name = name
        self.refusal: MotetError | None = None
        """Why the site has closed the last connection."""
        self.address = addresses[0]
        self._addresses = list(addresses)
        self._hearer = hearer
        self._line: Line | None = None
        self._lost = asyncio.Event()
        self._greeted = asyncio.Event()
        """The site has welcomed us, or the connection is lost."""
        self._ended = False
        self._backoff = Backoff(last_s=LONGEST_PAUSE_S)
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    @property
    def is_refused(self) -> bool:
        """It would be refused again. A standby refuses, but the next address may be its primary."""
        refusal = self.refusal
        return isinstance(refusal, MisuseError | PeerError) and type(refusal) is not NoClientsHere

    def send(self, frames: Sequence[Frame]) -> None:
        if self._line is not None:
            self._line.send([encode(frame) for frame in frames])

    def abort(self, reason: str) -> None:
        if self._line is not None:
            self._line.connection.abort(reason)

    async def close(self) -> None:
        self._ended = True
        self._keeping.cancel()
        if self._line is not None:
            self._line.connection.close("the client is closed")
        await asyncio.wait({self._keeping})

    async def _keep(self) -> None:
        while True:
            self._lost.clear()
            self._greeted.clear()
            self.address = self._addresses[0]
            try:
                async with asyncio.timeout(DIAL_S):
                    await dial(self.address, self)
            except (MotetError, TimeoutError, OSError) as problem:
                if isinstance(problem, MisuseError):
                    self.refusal = problem
                log.info("cannot reach the sequencer at %s: %s", self.address, problem)
            else:
                await self._stay()
            self._addresses.append(self._addresses.pop(0))
            await asyncio.sleep(self._backoff.wait_s())

    async def _stay(self) -> None:
        """As long as the connection lasts. A process that stands still does not welcome us."""
        try:
            async with asyncio.timeout(DIAL_S):
                await self._greeted.wait()
        except TimeoutError:
            self.abort(f"no welcome within {DIAL_S:g} s")
        await self._lost.wait()

    # ── what the line says ───────────────────────────────────────────────────────────────

    def connected(self, line: Line) -> None:
        if self._ended:
            raise ClosedError("the client is closed")
        self._line = line
        self.refusal = None
        self._hearer.site_connected(self)

    def heard(self, bodies: Sequence[bytes]) -> None:
        frames: list[Frame] = []
        try:
            for body in bodies:
                frame = decode(body)
                if isinstance(frame, Farewell):
                    if frame.error:
                        self.refusal = error_of(Failure(frame.error, frame.text))
                elif not isinstance(frame, Beat):
                    if isinstance(frame, OrderWelcome):
                        self._welcomed(frame)
                    frames.append(frame)
        except PeerError as problem:
            self.abort(str(problem))
            return
        if frames:
            self._hearer.site_heard(self, frames)

    def _welcomed(self, welcome: OrderWelcome) -> None:
        self.refusal = None
        self._backoff.reset()
        self._greeted.set()
        assert self._line is not None
        self._line.keep_pace(welcome.heartbeat_s)
        for each in addresses_of(dict(welcome.line).get(welcome.site, "")):
            if each not in self._addresses:
                self._addresses.append(each)

    def relieved(self) -> None:
        """Windows bound what waits to be sent."""

    def disconnected(self, reason: str) -> None:
        self._line = None
        self._greeted.set()
        self._lost.set()
        log.info("the connection to the sequencer at %s has ended: %s", self.address, reason)
        # Others say nothing of what we have sent: the site stops, or is a standby.
        blames_us = isinstance(self.refusal, PeerError | NotOffered)
        self._hearer.site_closed(self, str(self.refusal) if blames_us else "")
