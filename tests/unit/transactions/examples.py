"""Examples of the frames of `protocol/transactions`."""

from __future__ import annotations

from motet.protocol.frames import Frame
from motet.protocol.link.messages import Control
from motet.protocol.routing.messages import Started, Subscribe, Switched
from motet.protocol.transactions.messages import (
    Ask,
    Begun,
    Contribution,
    Decide,
    Echoed,
    Effective,
    Ended,
    Engage,
    Engaged,
    Invite,
    Letter,
    LetterBody,
    Open,
    Opening,
    Prepare,
    Query,
    Reply,
    Settle,
    Submit,
    Tell,
    Verdict,
    Withdraw,
)
from tests.unit.examples import BODY, FILTER, OP, STEPS, TX

PART = Contribution(
    "c", 3, (Begun(OP, FILTER, "1"),), (Ended(OP, FILTER, "2"),), 4, "B1.7", (BODY,), 99, "B2"
)
LETTERS: tuple[LetterBody, ...] = (
    Engage(TX, "d", STEPS, 2.5, ("c", "d"), "key"),
    Engaged(TX, PART, 2.5, ("c", "d"), "key"),
    Open(TX, 2.5),
    Submit(TX, (PART,), "key", True),
    Withdraw(TX, "B2", "no", "key"),
    Query(TX, "B2"),
    Verdict(TX, 7, True),
    Ask(TX, OP, "B2"),
    Tell(OP, "committed"),
    Effective(TX),
)

FRAMES: list[Frame] = [
    Control(8, tuple(Letter("B3", letter) for letter in LETTERS)),
    Control(
        17,
        (
            Subscribe(OP, FILTER, tx=TX, ended=True),
            Started(OP, "B1.7", 4, True),
            Switched(OP, "B1.7", 5, True),
            Invite(TX, OP, "00000001", BODY, 2.5, True),
            Reply(OP, (PART,), 2, "no"),
            Opening(TX),
            Prepare(TX),
            Decide(TX, 7, True, "", PART.begun, PART.ended, ("B1.7",)),
            Echoed(TX, "prepare", "changed"),
            Settle(TX),
        ),
    ),
]
