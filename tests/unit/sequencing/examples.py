"""Examples of the frames of `protocol/sequencing`."""

from __future__ import annotations

from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.messages import Control
from motet.protocol.sequencing.messages import (
    CAUSAL,
    OPEN,
    PUBLISHED,
    VOID,
    AskNumbers,
    Changed,
    ChangeMade,
    ChangePassage,
    ChangeRequest,
    Confirm,
    Far,
    GiveBack,
    HowFar,
    Keep,
    NumberRequest,
    Numbers,
    OrderHello,
    OrderWelcome,
    RequestsSettled,
    Stamped,
    StampPassage,
    StreamsKept,
    Timestamp,
    Told,
    TopicIds,
    TopicQuery,
)
from motet.protocol.sequencing.standby import (
    InStep,
    PairHello,
    PromoteAnswer,
    PromoteRequest,
    RegisterClaim,
    RegisterQuery,
    RegisterTold,
    SiteFacts,
    SiteFactsAck,
    SiteImagePart,
    WitnessHello,
)

STAMP = Timestamp(3, 2**40, (4, 17, 8, 2**40), ("s1-7f",))
BARE = Timestamp(6, 1)
LINE = (("north", "motet://127.0.0.1:7720"), ("south", "motet://127.0.0.1:7721"))

FRAMES: list[Frame] = [
    PairHello(PROTOCOL_VERSION, "north", "causal|north", 2**50, 2**50, 7, True, "motet://a:1"),
    SiteImagePart(17.5, 40, 1, 2, b"part"),
    SiteFacts(41, (b"fact", b""), {"south": 9}),
    SiteFactsAck(42),
    InStep(7, 2**50),
    WitnessHello(PROTOCOL_VERSION, "north", "causal|north", 2**50, "motet://a:1"),
    RegisterQuery(),
    RegisterClaim(7, 2**51),
    RegisterTold(2**50, 8, 2**51, 2**50, "motet://a:1"),
    PromoteRequest(risk=True),
    PromoteAnswer("NotSafe", "the primary answers"),
    OrderHello(PROTOCOL_VERSION, "alice-7f", b"secret"),
    OrderWelcome("north", LINE, (("order*", "south"),), "north", CAUSAL, 30.0, 60.0, 2.0, 9),
    TopicQuery(("orders", "prices")),
    TopicIds({"orders": 3, "prices": 5}),
    NumberRequest(7, (3, 3, 5), 4),
    Numbers(7, (STAMP, None, BARE)),
    GiveBack((8, 9)),
    Confirm(9),
    RequestsSettled(9, (8,)),
    ChangeRequest("s1-7f", 2, (3, 5)),
    Changed("s1-7f", 2, {3: 2**40, 5: 0}, "Expired", "it has expired"),
    Keep(("s1-7f",)),
    StreamsKept(("s2-7f",)),
    AskNumbers(3, (4, 5, 6)),
    Told(3, ((4, OPEN, None), (5, VOID, STAMP), (6, PUBLISHED, BARE))),
    HowFar((3, 5)),
    Far({3: 2**40, 5: 0}),
    Control(1, (StampPassage(0, (1, 2), (STAMP, BARE)), Stamped((STAMP,)))),
    Control(
        3,
        (
            ChangePassage("s1-7f", 1, 2, (3, 5), (3, 4, 5), {3: 9}, True),
            ChangeMade("s1-7f", 2, {3: 9}),
        ),
    ),
]
