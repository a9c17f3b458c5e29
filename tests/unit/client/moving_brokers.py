"""Brokers that only pretend to move clients, behind real connections in one event loop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import get_args

from msgspec import Struct

from motet.protocol.frames import Frame
from motet.protocol.mobility.messages import (
    ArrivalHello,
    Moved,
    MoveOrder,
    MoveOrdered,
    MoveRefusal,
    MoveRequest,
)
from motet.protocol.session.messages import (
    ClientHello,
    Done,
    Farewell,
    Goodbye,
    Publish,
    Published,
    Request,
    Status,
    StatusRequest,
    Welcome,
)
from motet.runtime.addresses import transport_for
from motet.runtime.codec import decode, encode
from motet.runtime.transport import Connection, Listening

_numbers = count(1)


class PretendOverlay:
    """Its brokers, and where each session is. A session that is nowhere is on its way."""

    def __init__(self, listen: str = "") -> None:
        """With `listen`, brokers have sockets; those that are not running have no address."""
        self.listen = listen
        self.brokers: dict[str, PretendBroker] = {}
        self.places: dict[str, str] = {}
        """By epoch."""
        self.published: dict[str, int] = {}
        self._number = next(_numbers)
        self._epochs = count(1)

    def address(self, broker: str) -> str:
        if self.listen:
            return self.brokers[broker].address if broker in self.brokers else ""
        return f"inproc://pretend-{self._number}-{broker}"

    async def start(self, *names: str) -> None:
        for name in names:
            broker = PretendBroker(name, self)
            await broker.start(self.listen or self.address(name))
            self.brokers[name] = broker

    def opened(self, broker: str) -> str:
        epoch = f"{broker}-{next(self._epochs)}"
        self.places[epoch] = broker
        return epoch

    def decide(self, epoch: str, to: str, address: str | None = None) -> Moved:
        """The session leaves for another broker, and arrives at once unless that is unknown."""
        self.places[epoch] = to if to in self.brokers else ""
        return Moved(to, self.address(to) if address is None else address)


class PretendBroker:
    def __init__(self, name: str, overlay: PretendOverlay) -> None:
        self.name = name
        self.overlay = overlay
        self.heard: list[Frame] = []
        self.moved: dict[str, Moved] = {}
        """By client: what a hello is answered with."""
        self.refusal: MoveRefusal | None = None
        self.ordered: MoveOrdered | None = None
        """The answer to an operator, if it is not that the move is decided."""
        self.homes: dict[str, str | None] = {}
        """Where it says that clients are."""
        self.goes_to: str | None = None
        """The address in `Moved`, if it is not the right one."""
        self.is_silent = False
        """It does not answer a MoveRequest."""
        self.holds = False
        """It holds every hello back."""
        self.connections: list[PretendConnection] = []
        self._listening: Listening

    @property
    def address(self) -> str:
        return self._listening.address

    async def start(self, address: str) -> None:
        self._listening = await transport_for(address).listen(address, self._accept)

    async def stop(self) -> None:
        await self._listening.close()
        for each in self.connections:
            each.connection.abort("stopped")

    def _accept(self, connection: Connection) -> PretendConnection:
        made = PretendConnection(self, connection)
        self.connections.append(made)
        return made

    def count(self, kind: type[Struct]) -> int:
        return sum(type(frame) is kind for frame in self.heard)

    def tell(self, frame: Moved) -> None:
        """Send its client away, as an operator would."""
        self.connections[-1].send_away(frame)


class PretendConnection:
    """Answers the frames of one client."""

    def __init__(self, broker: PretendBroker, connection: Connection) -> None:
        self.broker = broker
        self.connection = connection
        self.client = self.epoch = ""

    def frames(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            frame = decode(body)
            self.broker.heard.append(frame)
            self._answer(frame)

    def writable(self) -> None: ...

    def closed(self, reason: str) -> None: ...

    def say(self, *frames: Frame) -> None:
        self.connection.send([encode(frame) for frame in frames])

    def send_away(self, frame: Moved) -> None:
        self.broker.moved[self.client] = frame
        self.say(frame, Farewell("", "moved"))
        self.connection.close("moved")

    def _answer(self, frame: Frame) -> None:
        broker, overlay = self.broker, self.broker.overlay
        match frame:
            case ClientHello():
                self._welcome(frame)
            case ArrivalHello():
                self._welcome(frame.hello)
            case MoveRequest() if broker.refusal is not None:
                self.say(broker.refusal)
            case MoveRequest() if not broker.is_silent:
                if frame.to in overlay.brokers:  # it may come back
                    overlay.brokers[frame.to].moved.pop(self.client, None)
                self.send_away(overlay.decide(self.epoch, frame.to, broker.goes_to))
            case Publish():
                upto = frame.first + len(frame.bodies) - 1
                overlay.published[self.epoch] = upto
                self.say(Published(upto))
            case StatusRequest():
                self.say(Status({"broker": broker.name, "homes": broker.homes}))
            case MoveOrder() if not broker.is_silent:
                self.say(broker.ordered or MoveOrdered(frame.client))
            case Goodbye():
                self.connection.close("goodbye")
            case _ if isinstance(frame, get_args(Request)):
                self.say(Done(frame.sequence))  # type: ignore[union-attr]

    def _welcome(self, hello: ClientHello) -> None:
        broker, overlay = self.broker, self.broker.overlay
        self.client = hello.client
        if hello.client in broker.moved and (hello.resume is not None or hello.keep_s):
            self.send_away(broker.moved[hello.client])
        elif not broker.holds:
            here = [epoch for epoch, place in overlay.places.items() if place == broker.name]
            wanted = hello.resume or (here[-1] if hello.keep_s and here else None)
            resumed = wanted in here
            self.epoch = wanted if resumed and wanted else overlay.opened(broker.name)
            published = overlay.published.get(self.epoch, 0)
            self.say(Welcome(broker.name, self.epoch, resumed, published, 30.0, taken=published))
