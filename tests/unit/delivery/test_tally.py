"""What a broker tells of the questions and answers on its links."""

from __future__ import annotations

from motet.broker.core.broker import BrokerCore
from motet.protocol.config import BrokerConfig
from motet.protocol.delivery.messages import AckExpected, AckUp, Knowledge, Nack
from motet.protocol.delivery.neighbours import RECENT_NACKS, Tally
from motet.protocol.delivery.spans import Span
from motet.protocol.delivery.stream import Liveness
from tests.unit.delivery.rig import P, event


def test_every_kind_of_frame_is_counted_on_its_own() -> None:
    tally = Tally()
    tally.note("sent", "n", Knowledge(P, Span(1, 9, [4], [event("t", 4)])), 1.0)
    tally.note("sent", "n", Knowledge(P, Span(1, 9, [4], [event("t", 4)]), again=True), 1.0)
    tally.note("sent", "n", AckExpected(P, 9), 1.0)
    tally.note("received", "n", AckUp(P, 9), 2.0)
    tally.note("received", "n", Nack(P, ((1, 4), (6, 6))), 3.0)
    tally.note("received", "n", Nack(P, ()), 4.0)
    told = tally.account()
    assert {name: count for name, count in told["sent"].items() if count} == {
        "knowledge": 1,
        "answers": 1,
        "events_again": 1,
        "acks_expected": 1,
    }
    assert {name: count for name, count in told["received"].items() if count} == {
        "acks": 1,
        "nacks": 1,
        "nack_ranges": 2,
        "nack_ticks": 5,
        "inquiries": 1,
    }
    assert told["recent_nacks"] == [
        {"at": 3.0, "way": "received", "neighbour": "n", "pubend": P, "ranges": 2, "ticks": 5}
    ]


def test_only_the_last_nacks_are_kept_one_by_one() -> None:
    tally = Tally()
    for number in range(RECENT_NACKS + 5):
        tally.note("sent", "n", Nack(P, ((number, number),)), float(number))
    assert len(tally.recent) == RECENT_NACKS
    assert tally.recent[0].at == 5.0
    assert tally.sent.nacks == RECENT_NACKS + 5


def test_a_broker_takes_its_liveness_times_from_its_configuration() -> None:
    core = BrokerCore(BrokerConfig("A", liveness=Liveness(gap_s=7.0)))
    assert core.streams.machine._liveness.gap_s == 7.0
    assert core.status()["delivery"]["sent"]["nacks"] == 0
