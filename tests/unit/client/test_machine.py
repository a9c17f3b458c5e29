"""The client's machine against hand-made frames."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from motet.client.session.machine import MAX_REQUESTS, MOVES, ClientMachine
from motet.client.session.state import (
    Arrived,
    ConnectionEnd,
    Dismissed,
    Failure,
    Lapsed,
    Resolved,
    Settled,
    Welcomed,
)
from motet.errors import ClosedError, InvariantError, MisuseError, NoSuchOperation, ProtocolError
from motet.model import Filter
from motet.protocol.delivery.messages import Delivered
from motet.protocol.frames import PROTOCOL_VERSION, Beat, Frame
from motet.protocol.publication import Publication
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    Deliver,
    Delivery,
    Done,
    Failed,
    Farewell,
    Goodbye,
    Publish,
    Published,
    Refusal,
    StatusRequest,
    SubscribeRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
    Welcome,
)

F = Filter.parse("x > 1")
G = Filter.parse("y = 2")


def bodies(*names: str) -> list[Raw]:
    return [Raw(name.encode()) for name in names]


def welcome(
    epoch: str = "B1-1", resumed: bool = False, published: int = 0, forgot: bool = False
) -> Welcome:
    return Welcome("B1", epoch, resumed, published, 30.0, forgot=forgot)


def happened(machine: ClientMachine) -> list[Any]:
    machine.validate()
    return machine.take().happened


def sent(machine: ClientMachine) -> list[Any]:
    machine.validate()
    return machine.take().send


def opened(epoch: str = "B1-1", **options: Any) -> ClientMachine:
    machine = ClientMachine("alice", **options)
    machine.opened()
    machine.received(welcome(epoch))
    machine.take()
    return machine


def reopen(machine: ClientMachine, answer: Welcome) -> tuple[list[Any], list[Any]]:
    """Lose the connection, come back, be welcomed so; what was sent after the hello, and told."""
    machine.closed()
    machine.opened()
    (hello,) = sent(machine)
    assert isinstance(hello, ClientHello)
    machine.received(answer)
    machine.validate()
    effects = machine.take()
    return effects.send, effects.happened


# ── sessions ─────────────────────────────────────────────────────────────────────────────


def test_hello_asks_for_the_session_it_had() -> None:
    machine = ClientMachine("alice", credentials=b"secret")
    machine.opened()
    assert sent(machine) == [ClientHello(PROTOCOL_VERSION, "alice", None, b"secret")]
    machine.received(welcome("B1-7"))
    assert happened(machine) == [Welcomed("fresh", "B1", "B1-7", 30.0, 2.0)]
    machine.closed()
    machine.opened()
    assert sent(machine) == [ClientHello(PROTOCOL_VERSION, "alice", "B1-7", b"secret")]
    machine.received(welcome("B1-7", resumed=True))
    assert happened(machine) == [Welcomed("resumed", "B1", "B1-7", 30.0, 2.0)]
    assert (machine.broker, machine.epoch) == ("B1", "B1-7")


def test_every_hello_names_the_instance() -> None:
    machine = ClientMachine("alice", instance="one")
    machine.opened()
    assert sent(machine) == [ClientHello(PROTOCOL_VERSION, "alice", None, b"", "one")]
    machine.received(welcome("B1-1.7"))
    machine.closed()
    machine.opened()
    assert sent(machine) == [ClientHello(PROTOCOL_VERSION, "alice", "B1-1.7", b"", "one")]


def test_a_hello_says_how_far_the_answers_of_its_session_go() -> None:
    machine = ClientMachine("alice")
    machine.opened()
    machine.received(welcome("B1-1.7"))
    for _ in range(3):
        machine.request("subscribe", F)
    machine.received(Failed(2, "NotEffective", "too late"))
    machine.closed()
    sent(machine)
    machine.opened()
    assert sent(machine) == [ClientHello(PROTOCOL_VERSION, "alice", "B1-1.7", answered=2)]
    machine.received(welcome("B1-2.7"))  # another session: nothing of it is answered
    machine.closed()
    sent(machine)
    machine.opened()
    assert sent(machine) == [ClientHello(PROTOCOL_VERSION, "alice", "B1-2.7")]


def test_a_broker_with_an_old_copy_of_its_state_is_not_asked_again() -> None:
    machine = ClientMachine("alice")
    machine.opened()
    machine.received(welcome())
    machine.request("subscribe", F)
    machine.received(Farewell("StaleState", "move the folder away"))
    failure = Failure("StaleState", "move the folder away")
    assert happened(machine)[-2:] == [Resolved(1, failure), Dismissed(failure)]
    assert machine.state == "ended"


def test_requests_made_before_the_welcome_are_sent_after_it_in_order() -> None:
    machine = ClientMachine("alice")
    machine.request("advertise", F)
    machine.publish(bodies("a"))
    machine.opened()
    machine.request("subscribe", G, wait=False, timeout_s=3.0)
    machine.publish(bodies("b", "c"))
    assert sent(machine) == [ClientHello(PROTOCOL_VERSION, "alice", None)]
    machine.received(welcome())
    assert sent(machine) == [
        AdvertiseRequest(1, F),
        Publish(1, bodies("a")),
        SubscribeRequest(2, G, False, 3.0),
        Publish(2, bodies("b", "c")),
    ]


def test_a_resumed_session_sends_unanswered_requests_again_under_the_same_sequence() -> None:
    machine = opened()
    machine.request("advertise", F)
    machine.request("subscribe", F)
    machine.request("subscribe", G)
    machine.received(Done(2))
    machine.take()
    again, _ = reopen(machine, welcome(resumed=True))
    assert again == [AdvertiseRequest(1, F), SubscribeRequest(3, G)]
    machine.received(Done(1))
    machine.received(Done(1))  # known already
    assert happened(machine) == [Resolved(1, None)]


def test_a_lost_session_renews_what_was_in_force_advertisements_first() -> None:
    machine = opened("B1-1")
    subscription = machine.request("subscribe", F)
    advertisement = machine.request("advertise", G)
    machine.received(Done(1))
    machine.received(Done(2))
    pending = machine.request("subscribe", G, timeout_s=4.0)
    machine.take()
    again, told = reopen(machine, welcome("B1-2"))
    assert again == [
        AdvertiseRequest(1, G, False),
        SubscribeRequest(2, F, False),
        SubscribeRequest(3, G, True, 4.0),
    ]
    assert told == [Welcomed("lost", "B1", "B1-2", 30.0, 2.0)]
    # Handles stay, deliveries find their way, and nobody hears of the renewal.
    machine.received(Done(1))
    machine.received(Done(2))
    event = Publication("bob", 1, Raw(b"e"))
    machine.received(Deliver([Delivery((2,), event), Delivery((2, 3), event)]))
    machine.received(Done(3))
    assert happened(machine) == [
        Arrived([((subscription,), event), ((subscription, pending), event)], 0),
        Resolved(pending, None),
    ]
    machine.request("unadvertise", target=advertisement)
    assert sent(machine) == [UnadvertiseRequest(4, 1)]


def test_a_session_lost_twice_during_renewal_renews_again() -> None:
    machine = opened("B1-1")
    machine.request("advertise", F)
    machine.received(Done(1))
    machine.take()
    reopen(machine, welcome("B1-2"))
    again, _ = reopen(machine, welcome("B1-3"))
    assert again == [AdvertiseRequest(1, F, False)]


def test_operations_being_removed_end_with_the_session() -> None:
    machine = opened()
    kept = machine.request("advertise", F)
    gone = machine.request("subscribe", F)
    machine.received(Done(1))
    machine.received(Done(2))
    doubtful = machine.request("subscribe", G)
    first = machine.request("unsubscribe", target=gone)
    second = machine.request("unsubscribe", target=doubtful)
    machine.take()
    again, told = reopen(machine, welcome("B1-2"))
    assert again == [AdvertiseRequest(1, F, False)]
    withdrawn = Failure("Withdrawn", "cancelled before it was answered")
    assert told[:-1] == [
        Resolved(doubtful, withdrawn),
        Resolved(first, None),
        Resolved(second, None),
    ]
    assert list(machine.requests.standing) == [kept]


def test_a_renewal_that_fails_is_told() -> None:
    machine = opened()
    handle = machine.request("subscribe", F)
    machine.received(Done(1))
    machine.take()
    reopen(machine, welcome("B1-2"))
    machine.received(Failed(1, "FilterTooComplex", "too much"))
    assert happened(machine) == [Lapsed(handle, Failure("FilterTooComplex", "too much"))]
    assert list(machine.requests.standing) == []


@pytest.mark.parametrize("heartbeat_s", [0.0, -1.0, 1e9, float("inf"), float("nan")])
def test_an_impossible_heartbeat_is_a_protocol_error_of_the_broker(heartbeat_s: float) -> None:
    machine = ClientMachine("alice")
    machine.opened()
    machine.take()
    with pytest.raises(ProtocolError, match="heartbeat"):
        machine.received(Welcome("B1", "B1-1", False, 0, 30.0, heartbeat_s=heartbeat_s))
    assert machine.state == "greeting"
    machine.received(Welcome("B1", "B1-1", False, 0, 30.0, heartbeat_s=0.5))
    assert happened(machine) == [Welcomed("fresh", "B1", "B1-1", 30.0, 0.5)]


# ── the end ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "final"),
    [
        ("Fenced", True),
        ("VersionError", True),
        ("FrameError", False),
        ("MisuseError", True),
        ("NotAdvertised", True),
        ("Disconnected", False),
        ("InvariantError", False),
        ("ProtocolError", False),
        ("", False),
        ("NeverHeardOf", False),
        ("annotations", False),  # an attribute of the module, but no error
    ],
)
def test_which_farewells_are_final(error: str, final: bool) -> None:
    machine = opened()
    handle = machine.request("subscribe", F)
    machine.publish(bodies("a", "b"))
    machine.take()
    machine.received(Farewell(error, "why"))
    why = Failure(error, "why")
    if final:
        told = [Resolved(handle, why), Settled(2, (), why), Dismissed(why)]
        assert (happened(machine), machine.state) == (told, "ended")
        with pytest.raises(ClosedError):
            machine.request("subscribe", F)
        with pytest.raises(ClosedError):
            machine.publish(bodies("c"))
        assert not machine.can_publish
    else:
        assert (happened(machine), machine.state) == ([ConnectionEnd(why)], "offline")
    machine.closed()


def refuse(machine: ClientMachine, error: str) -> list[Any]:
    """Come back, and be sent away before the welcome."""
    machine.opened()
    machine.take()
    machine.received(Farewell(error, "why"))
    told = happened(machine)
    machine.closed()
    return told


def test_three_protocol_errors_in_a_row_end_the_client() -> None:
    machine = opened()
    machine.received(Farewell("ProtocolError", "why"))
    assert happened(machine) == [ConnectionEnd(Failure("ProtocolError", "why"))]
    machine.closed()
    assert refuse(machine, "FrameError") == [ConnectionEnd(Failure("FrameError", "why"))]
    assert refuse(machine, "ProtocolError") == [Dismissed(Failure("ProtocolError", "why"))]
    assert machine.state == "ended"


@pytest.mark.parametrize("between", ["answer", "delivery", "another reason"])
def test_blame_is_counted_in_a_row_only(between: str) -> None:
    machine = opened()
    machine.publish(bodies(*"abcdefgh"))
    machine.closed()
    for upto in range(1, 6):
        for _ in range(2):
            assert refuse(machine, "ProtocolError") == [
                ConnectionEnd(Failure("ProtocolError", "why"))
            ]
        if between == "another reason":
            refuse(machine, "Disconnected")
            continue
        reopen(machine, welcome(resumed=True, published=upto))
        machine.received(Published(upto) if between == "answer" else Deliver([]))
        machine.closed()
    assert machine.state == "offline"


def test_a_request_that_the_broker_refuses_after_every_welcome_is_not_repeated_for_ever() -> None:
    machine = opened()
    handle = machine.request("subscribe", F)
    why = Failure("ProtocolError", "why")
    machine.take()
    for last in (False, False, True):
        machine.received(Farewell("ProtocolError", "why"))
        told = happened(machine)
        assert told == ([Resolved(handle, why), Dismissed(why)] if last else [ConnectionEnd(why)])
        if not last:
            again, _ = reopen(machine, welcome(resumed=True))
            assert again == [SubscribeRequest(1, F)]
    assert machine.state == "ended"


def test_goodbye_ends_everything_that_is_open() -> None:
    machine = opened()
    handle = machine.request("subscribe", F)
    machine.publish(bodies("a"))
    machine.take()
    machine.goodbye()
    machine.goodbye()
    effects = machine.take()
    closed = Failure("ClosedError", "the client was closed")
    assert effects.send == [Goodbye()]
    assert effects.happened == [Resolved(handle, closed), Settled(1, (), closed)]
    late = (Done(1), Published(1), welcome(), Deliver([]), Delivered("p", 1))
    for frame in (*late, Farewell("Fenced", "")):
        machine.received(frame)
    machine.closed()
    machine.validate()
    assert machine.take().happened == []


# ── publications ─────────────────────────────────────────────────────────────────────────


def test_publications_are_settled_in_ranges() -> None:
    machine = opened()
    assert machine.publish(bodies("a", "b", "c")) == range(1, 4)
    machine.received(Published(2, (Refusal(2, "NotAdvertised", "no"),)))
    machine.received(Published(2))
    machine.received(Published(3))
    assert happened(machine) == [
        Settled(2, (Refusal(2, "NotAdvertised", "no"),)),
        Settled(3),
    ]


@pytest.mark.parametrize(
    ("answer", "settled", "again"),
    [
        (welcome(resumed=True, published=1), [], [Publish(2, bodies("b", "c"))]),
        (welcome(resumed=True, published=2), [Settled(2)], [Publish(3, bodies("c"))]),
        (welcome(resumed=True, published=3), [Settled(3)], []),
        (welcome("B1-2"), [Settled(3, (), "unknown")], []),
    ],
)
@pytest.mark.parametrize("sure", [True, False])
def test_the_fate_of_publications_under_way(
    answer: Welcome, settled: list[Any], again: list[Publish], sure: bool
) -> None:
    machine = opened()
    machine.publish(bodies("a", "b", "c"), sure)
    machine.received(Published(1))
    machine.take()
    frames, told = reopen(machine, answer)
    assert frames == [Publish(frame.first, frame.bodies, sure) for frame in again]
    assert fates(told) == settled


def fates(told: list[Any]) -> list[Any]:
    settled = [t for t in told if isinstance(t, Settled)]
    return [t._replace(unknown="unknown") if t.unknown else t for t in settled]


@pytest.mark.parametrize(
    ("published", "sure", "settled", "again"),
    [
        # The log knows sure ones: those it has are settled, the others are sent again.
        (1, True, [], [Publish(2, bodies("b", "c"))]),
        (0, True, [], [Publish(2, bodies("b", "c"))]),
        (2, True, [Settled(2)], [Publish(3, bodies("c"))]),
        # Nobody knows best-effort ones: some of them may have arrived.
        (1, False, [Settled(3, (), "unknown")], []),
        (0, False, [Settled(3, (), "unknown")], []),
    ],
)
def test_the_fate_of_publications_when_the_broker_has_lost_count(
    published: int, sure: bool, settled: list[Any], again: list[Frame]
) -> None:
    machine = opened()
    machine.publish(bodies("a", "b", "c"), sure)
    machine.received(Published(1))
    machine.take()
    frames, told = reopen(machine, welcome(resumed=True, published=published, forgot=True))
    assert (frames, fates(told)) == (again, settled)


def test_frames_carry_one_kind_and_one_counter_numbers_both() -> None:
    machine = opened()
    machine.publish(bodies("a"), sure=True)
    machine.publish(bodies("b"), sure=False)
    assert sent(machine) == [Publish(1, bodies("a"), True), Publish(2, bodies("b"), False)]
    machine.closed()
    machine.publish(bodies("c"), sure=False)
    machine.publish(bodies("d"), sure=True)
    machine.opened()
    machine.take()
    machine.received(welcome(resumed=True, published=0))
    assert sent(machine) == [
        Publish(1, bodies("a"), True),
        Publish(2, bodies("b", "c"), False),
        Publish(4, bodies("d"), True),
    ]


def test_publications_given_up_are_skipped_and_settled_in_order() -> None:
    machine = opened()
    for name, sure in zip("abcdef", (False, True, False, False, True, False), strict=True):
        machine.publish(bodies(name), sure)
    machine.closed()
    machine.publish(bodies("g"), sure=False)  # never sent, so it can be
    machine.take()
    frames, told = reopen_later(machine, welcome(resumed=True, published=0, forgot=True))
    assert frames == [
        Publish(2, bodies("b")),
        Publish(5, bodies("e")),
        Publish(7, bodies("g"), False),
    ]
    assert fates(told) == [Settled(1, (), "unknown")]
    machine.received(Published(2))
    assert fates(happened(machine)) == [Settled(2), Settled(4, (), "unknown")]
    refused = (Refusal(5, "NotAdvertised", "e"), Refusal(7, "NotAdvertised", "g"))
    machine.received(Published(7, refused))
    assert fates(happened(machine)) == [
        Settled(5, refused[:1]),
        Settled(6, (), "unknown"),
        Settled(7, refused[1:]),
    ]


def test_publications_given_up_stay_so_until_the_session_ends() -> None:
    machine = opened()
    machine.publish(bodies("a"), sure=True)
    machine.publish(bodies("b"), sure=False)
    machine.take()
    forgot = welcome(resumed=True, forgot=True)
    assert reopen(machine, forgot)[0] == [Publish(1, bodies("a"))]
    machine.publish(bodies("c"), sure=False)
    assert sent(machine) == [Publish(3, bodies("c"), False)]
    frames, told = reopen(machine, welcome(resumed=True, published=1))
    assert frames == [Publish(3, bodies("c"), False)]
    assert fates(told) == [Settled(1), Settled(2, (), "unknown")]
    machine.publish(bodies("d", "e"), sure=False)
    machine.take()
    assert fates(reopen(machine, forgot)[1]) == [Settled(5, (), "unknown")]
    machine.publish(bodies("f"), sure=False)
    assert sent(machine) == [Publish(6, bodies("f"), False)]
    frames, told = reopen(machine, welcome("B1-2"))
    assert (frames, fates(told)) == ([], [Settled(6, (), "unknown")])
    machine.publish(bodies("g"))
    assert sent(machine) == [Publish(1, bodies("g"))]


def reopen_later(machine: ClientMachine, answer: Welcome) -> tuple[list[Any], list[Any]]:
    """Like `reopen`, for a connection that is lost already."""
    machine.opened()
    machine.take()
    machine.received(answer)
    machine.validate()
    effects = machine.take()
    return effects.send, effects.happened


def test_a_lost_answer_says_that_the_event_may_be_durable_and_what_to_do() -> None:
    machine = opened()
    machine.publish(bodies("a"))
    machine.take()
    (lost,) = [each for each in reopen(machine, welcome("B1-2"))[1] if isinstance(each, Settled)]
    assert lost.unknown is not None
    assert "unknown whether the event is durable; publish it again if" in lost.unknown.text


def test_refusals_that_were_lost_with_the_connection_come_with_the_welcome() -> None:
    machine = opened()
    machine.publish(bodies("a", "b", "c", "d", "e"))
    machine.received(Published(1, (Refusal(1, "NotAdvertised", "a"),)))
    machine.take()
    refused = (Refusal(1, "NotAdvertised", "a"), Refusal(3, "NotAdvertised", "c"))
    answer = Welcome("B1", "B1-1", True, 4, 30.0, refused, 0)
    frames, told = reopen(machine, answer)
    assert frames == [Publish(5, bodies("e"))]
    assert told[0] == Settled(4, refused[1:])


def test_refusals_that_the_broker_forgot_leave_the_fate_unknown() -> None:
    machine = opened()
    machine.publish(bodies("a", "b", "c", "d"))
    machine.take()
    refused = (Refusal(3, "NotAdvertised", "c"),)
    _, told = reopen(machine, Welcome("B1", "B1-1", True, 4, 30.0, refused, 2))
    lost = Failure("Disconnected", "the answer was lost with the connection")
    assert told[:2] == [Settled(2, (), lost), Settled(4, refused)]


@pytest.mark.parametrize(
    ("answer", "first"), [(welcome(resumed=True, forgot=True), 2), (welcome("B1-2"), 1)]
)
def test_an_unsent_publication_is_sent_after_any_welcome(answer: Welcome, first: int) -> None:
    machine = opened()
    machine.publish(bodies("sent"), sure=False)
    machine.closed()
    assert machine.publish(bodies("unsent"), sure=False) == range(2, 3)
    machine.opened()
    machine.take()
    machine.received(answer)
    assert sent(machine) == [Publish(first, bodies("unsent"), False)]
    machine.received(Published(first))
    assert happened(machine) == [Settled(2)]


def test_the_window_bounds_what_is_open() -> None:
    machine = opened(window=3)
    machine.publish(bodies("a", "b"))
    assert (machine.window.room, machine.can_publish) == (1, True)
    with pytest.raises(MisuseError, match="more than 3"):
        machine.publish(bodies("c", "d"))
    machine.publish(bodies("c"))
    assert (machine.window.room, machine.can_publish) == (0, False)
    machine.received(Published(2))
    assert machine.window.room == 2


def test_large_batches_are_cut() -> None:
    machine = opened()
    machine.publish([Raw(b"x")] * 600)
    assert [(f.first, len(f.bodies)) for f in sent(machine)] == [(1, 256), (257, 256), (513, 88)]
    machine.publish([Raw(b"x" * 100_000)] * 5)
    assert [len(f.bodies) for f in sent(machine)] == [2, 2, 1]


# ── requests ─────────────────────────────────────────────────────────────────────────────


def test_requests_are_resolved_in_any_order() -> None:
    machine = opened()
    one, two = machine.request("advertise", F), machine.request("subscribe", F)
    machine.received(Failed(2, "NotEffective", "slow", ("B3",)))
    machine.received(Done(1))
    assert happened(machine) == [
        Resolved(two, Failure("NotEffective", "slow", ("B3",))),
        Resolved(one, None),
    ]
    assert list(machine.requests.standing) == [one]


def test_only_an_active_operation_can_be_removed_and_only_once() -> None:
    machine = opened()
    handle = machine.request("subscribe", F)
    with pytest.raises(NoSuchOperation):
        machine.request("unadvertise", target=handle)
    machine.received(Done(1))
    machine.request("unsubscribe", target=handle)
    with pytest.raises(NoSuchOperation):
        machine.request("unsubscribe", target=handle)
    machine.received(Done(2))
    with pytest.raises(NoSuchOperation):
        machine.request("unsubscribe", target=handle)
    event = Publication("bob", 1, Raw(b"e"))
    machine.take()
    machine.received(Deliver([Delivery((1,), event)]))  # it was under way
    assert happened(machine) == [Arrived([((), event)], 0)]


def test_an_abandoned_subscription_is_removed_silently() -> None:
    machine = opened()
    handle = machine.request("subscribe", F)
    machine.take()
    machine.abandon(handle)
    machine.abandon(handle)
    assert sent(machine) == [UnsubscribeRequest(2, 1, False)]
    machine.received(Failed(1, "Withdrawn", ""))
    machine.received(Done(2))
    assert happened(machine) == []
    assert list(machine.requests.standing) == []


@pytest.mark.parametrize("kind", ["advertise", "subscribe"])
def test_an_operation_abandoned_after_its_answer_is_removed_and_not_renewed(kind: Any) -> None:
    machine = opened()
    handle = machine.request(kind, F)
    machine.received(Done(1))
    machine.take()
    machine.abandon(handle)
    machine.abandon(handle)
    undo = UnadvertiseRequest if kind == "advertise" else UnsubscribeRequest
    assert sent(machine) == [undo(2, 1, False)]
    assert list(machine.requests.standing) == []
    assert reopen(machine, welcome("B1-2"))[0] == []
    assert list(machine.requests.standing) == []


def test_an_operation_abandoned_during_renewal_is_removed() -> None:
    machine = opened()
    handle = machine.request("subscribe", F)
    machine.received(Done(1))
    machine.take()
    reopen(machine, welcome("B1-2"))
    machine.abandon(handle)
    assert sent(machine) == [UnsubscribeRequest(2, 1, False)]
    machine.received(Done(1))
    machine.received(Done(2))
    assert (happened(machine), list(machine.requests.standing)) == ([], [])


def test_an_operation_abandoned_before_it_was_sent_leaves_no_trace() -> None:
    machine = opened()
    machine.request("advertise", F)
    machine.closed()
    for _ in range(2 * MAX_REQUESTS):
        machine.abandon(machine.request("subscribe", F))
    first, second = machine.request("subscribe", F), machine.request("subscribe", G)
    machine.publish(bodies("a"))
    third = machine.request("advertise", G)
    machine.abandon(first)
    machine.take()
    machine.opened()
    machine.take()
    machine.received(welcome(resumed=True))
    assert sent(machine) == [
        AdvertiseRequest(1, F),
        SubscribeRequest(2, G),
        Publish(1, bodies("a")),
        AdvertiseRequest(3, G),
    ]
    event = Publication("bob", 1, Raw(b"e"))
    machine.received(Deliver([Delivery((2,), event)]))
    machine.received(Done(2))
    machine.received(Done(3))
    assert happened(machine) == [
        Arrived([((second,), event)], 0),
        Resolved(second, None),
        Resolved(third, None),
    ]


def test_too_many_requests_are_refused() -> None:
    machine = opened()
    for _ in range(MAX_REQUESTS):
        machine.request("subscribe", F)
    with pytest.raises(MisuseError):
        machine.request("subscribe", F)
    machine.received(Done(1))
    machine.request("subscribe", F)


def test_a_request_without_a_filter_is_misuse() -> None:
    with pytest.raises(MisuseError, match="needs a filter"):
        opened().request("subscribe")


# ── deliveries ───────────────────────────────────────────────────────────────────────────


def test_the_count_of_dropped_events_begins_again_with_the_connection() -> None:
    machine = opened()
    machine.received(Deliver([], 3))
    machine.received(Deliver([], 5))
    assert happened(machine) == [Arrived([], 3), Arrived([], 2)]
    reopen(machine, welcome(resumed=True))
    machine.received(Deliver([], 1))
    assert happened(machine) == [Arrived([], 1)]


# ── misbehaviour ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "frame",
    [
        Done(1),
        Failed(9, "x", "y"),
        Published(1),
        welcome(),
        StatusRequest(),
        ClientHello(1, "bob"),
    ],
)
def test_an_invalid_frame_of_a_broker_is_a_protocol_error(frame: Frame) -> None:
    machine = opened()
    with pytest.raises(ProtocolError):
        machine.received(frame)
    machine.closed()
    machine.validate()


@pytest.mark.parametrize(
    "answer", [welcome("B1-9", resumed=True), welcome(resumed=True, published=2), Deliver([])]
)
def test_a_welcome_must_fit_the_hello(answer: Frame) -> None:
    machine = opened()
    machine.publish(bodies("a"))
    machine.closed()
    machine.opened()
    with pytest.raises(ProtocolError):
        machine.received(answer)
    machine.closed()
    machine.opened()
    machine.received(welcome(resumed=True, published=1))
    assert [t for t in happened(machine) if isinstance(t, Settled)] == [Settled(1)]


def test_opening_a_machine_twice_is_an_invariant_error() -> None:
    machine = opened()
    with pytest.raises(InvariantError):
        machine.opened()


def test_a_heartbeat_does_not_change_the_state() -> None:
    machine = ClientMachine("alice")
    machine.received(Beat())
    assert machine.state == "offline"


def test_every_state_is_listed_and_every_move_leads_to_one() -> None:
    assert set(MOVES) == {"offline", "greeting", "open", "ended"}
    assert all(after in MOVES for moves in MOVES.values() for after in moves.values())
    assert set(MOVES["ended"].values()) == {"ended"}
