"""Examples of the frames of `protocol/mobility`."""

from __future__ import annotations

from motet.protocol.delivery.messages import AckUp
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.messages import Control
from motet.protocol.mobility.messages import (
    ArrivalHello,
    DrainOrder,
    DrainOrdered,
    FencedAck,
    MoveCommit,
    Moved,
    MoveDone,
    MoveOffer,
    MoveOrder,
    MoveOrdered,
    MoveRefusal,
    MoveReply,
    MoveRequest,
    SessionAccount,
    SessionsListed,
    SessionsRequest,
    Strays,
)
from motet.protocol.routing.messages import MovingRow, MovingStarts, Rehome
from motet.protocol.session.messages import ClientHello
from motet.protocol.session.state import MovingSession, Session
from tests.unit.examples import FILTER, OP

WHO = (OP.client, OP.epoch, 1)
PATH = ("A", "B", "C")

COMMIT = MoveCommit(
    *WHO,
    PATH,
    durable=False,
    session=MovingSession(Session(OP.client, OP.epoch)),
    subscriptions=(MovingRow(OP, FILTER),),
    advertisements=(MovingRow(OP._replace(sequence=4), FILTER, residue=OP._replace(sequence=5)),),
    starts=MovingStarts(known=((OP, (("A.1", 7),)),)),
    levels={"A.1": 9},
    doubts={"A.1": 12},
    tick=20,
    predecessors={"A.1": 11},
)

FRAMES: list[Frame] = [
    MoveRequest(3, "B", 5.0),
    MoveOrder("c", "B"),
    MoveRefusal(3, "MoveRefused", "B drains", ("B",)),
    MoveOrdered("c", "NotEffective", "too late", ("B",)),
    Moved("B", "tcp://localhost:1"),
    ArrivalHello(PROTOCOL_VERSION, ClientHello(PROTOCOL_VERSION, "c", resume="A-7")),
    DrainOrder(draining=False),
    DrainOrdered(changed=False),
    DrainOrdered(changed=False, error="NotOffered", text="B is in a cell"),
    SessionsRequest("c"),
    SessionsListed((SessionAccount("c", connected=True, durable=False),), more=True),
    SessionsListed((SessionAccount("s", connected=False, durable=True, stays="a sink"),)),
    MoveOffer(*WHO, PATH, b"secret"),
    MoveReply(*WHO, PATH, "tcp://localhost:1"),
    Strays(4, 7, *WHO),
    FencedAck(7, AckUp("A.1", 5)),
    Control(5, (COMMIT, MoveDone(*WHO), Rehome(OP, "B", "A", upto=3))),
]
