"""Before the decision: who may move, and why a client stays where it is."""

from __future__ import annotations

from typing import Any

import pytest

from motet.model import OpId
from motet.protocol.mobility.messages import (
    MoveCommit,
    Moved,
    MoveOffer,
    MoveOrder,
    MoveOrdered,
    MoveRefusal,
    MoveReply,
    MoveRequest,
)
from motet.protocol.mobility.soft import LONGEST_S, OFFER_AGAIN_S
from motet.protocol.room import Objection
from motet.protocol.routing.messages import Complete, Echo
from motet.protocol.session.messages import (
    BeginRequest,
    ConsentRequest,
    Decided,
    Done,
    ExecuteRequest,
    Goodbye,
    Published,
    SubscribeRequest,
)
from motet.protocol.transactions.messages import Engage, Engaged, Invite, Letter, Step
from tests.unit.mobility.place import WIDE, Place, body


def place() -> Place:
    """A, with alice."""
    here = Place()
    here.connect()
    return here


def refusal(here: Place, client: str = "alice") -> MoveRefusal:
    (found,) = here.sent(client, MoveRefusal)
    return found


def digest(here: Place) -> str:
    return here.core.durable.digest()


# ── refused at once ──────────────────────────────────────────────────────────────────────


def test_an_unknown_broker_is_named_with_those_that_are_known() -> None:
    here = place()
    here.ask("Z")
    told = refusal(here)
    assert (told.number, told.error) == (1, "MisuseError")
    assert "no broker 'Z'" in told.text
    assert told.text.endswith("it knows B, C")
    assert here.counts == {}


def test_a_name_of_any_length_is_quoted_only_so_far() -> None:
    here = place()
    here.ask("Z" * 60_000)
    assert len(refusal(here).text) < 200


def test_a_move_to_where_the_client_is_is_refused_unless_an_operator_asks() -> None:
    here = place()
    here.ask("A")
    assert "is at A already" in refusal(here).text
    assert here.hear("operator", MoveOrder("alice", "A")) == [MoveOrdered("alice")]
    assert here.counts == {}


def test_a_broker_with_covering_moves_no_clients() -> None:
    here = Place(covering=True)
    here.connect()
    here.ask()
    told = refusal(here)
    assert (told.error, told.text) == ("NotOffered", "A moves no clients, because covering is on")


def test_an_order_for_a_client_that_is_not_here_says_so() -> None:
    here = place()
    (told,) = here.hear("operator", MoveOrder("bob", "C"))
    assert isinstance(told, MoveOrdered)
    assert (told.client, told.error) == ("bob", "UnknownClient")
    assert "'bob' has no session at A" in told.text


def test_an_order_for_a_client_that_has_moved_says_where_it_is() -> None:
    here = place()
    here.depart("C")
    (told,) = here.hear("operator", MoveOrder("alice", "B"))
    assert isinstance(told, MoveOrdered)
    assert told.error == "UnknownClient"
    assert "its session is at C: ask there" in told.text


def test_a_name_of_any_length_is_looked_up_only_so_far() -> None:
    here = place()
    (told,) = here.hear("operator", MoveOrder("x" * 10_000, "C"))
    assert isinstance(told, MoveOrdered)
    assert told.error == "UnknownClient"


def test_a_client_in_an_open_transaction_stays() -> None:
    here = Place(root="A")
    here.connect()
    here.hear("alice", BeginRequest(1, isolated=False))
    here.ask()
    told = refusal(here)
    assert told.error == "InTransaction"
    assert "end it, then move" in told.text


def test_a_second_order_to_another_broker_waits_for_nobody() -> None:
    here = place()
    here.ask("C")
    (told,) = here.hear("operator", MoveOrder("alice", "B"))
    assert isinstance(told, MoveOrdered)
    assert told.error == "MoveRefused"
    assert "is about to move to C" in told.text


def test_a_second_order_to_the_same_broker_is_answered_with_the_first() -> None:
    here = place()
    here.ask("C")
    assert here.hear("operator", MoveOrder("alice", "C")) == []
    here.accept()
    assert here.sent("operator", MoveOrdered) == [MoveOrdered("alice")]
    assert here.counts == {"asked": 1, "done": 1}


# ── offers ───────────────────────────────────────────────────────────────────────────────


def test_an_offer_goes_along_the_path_and_changes_nothing() -> None:
    here = place()
    here.subscribe()
    before, facts = digest(here), len(here.journal)
    here.ask()
    (offer,) = here.sent("B", MoveOffer)
    assert (offer.client, offer.path) == ("alice", ("A", "B", "C"))
    assert (digest(here), len(here.journal)) == (before, facts)


def test_an_offer_that_is_not_answered_is_repeated_until_the_deadline() -> None:
    here = place()
    here.ask(timeout_s=3 * OFFER_AGAIN_S)
    here.wait(2.5 * OFFER_AGAIN_S)
    offers = here.sent("B", MoveOffer)
    assert [each.number for each in offers] == [1, 2, 3]
    here.wait(OFFER_AGAIN_S)
    told = refusal(here)
    assert (told.error, told.missing) == ("NotEffective", ("C",))
    here.wait(10.0)
    assert here.sent("B", MoveOffer) == offers


def test_a_link_that_is_down_is_named_when_the_time_is_up() -> None:
    here = place()
    here.lose("B")
    here.ask(timeout_s=1.0)
    here.wait(1.1)
    assert refusal(here).missing == ("B",)


def test_a_broker_on_the_path_that_is_cut_off_is_named() -> None:
    here = place()
    here.ask(timeout_s=1.0)
    offer = here.offer()
    reply = MoveReply("alice", offer.epoch, offer.number, offer.path, missing=("C",))
    here.hear("B", reply)
    assert here.sent("alice", MoveRefusal) == []
    here.wait(1.1)
    assert refusal(here).missing == ("C",)


def test_a_target_that_refuses_is_quoted() -> None:
    here = place()
    before = digest(here)
    here.ask()
    offer = here.offer()
    full = MoveReply("alice", offer.epoch, offer.number, offer.path, "", "TooManyClients", "full")
    here.hear("B", full)
    told = refusal(here)
    assert (told.error, told.text) == ("TooManyClients", "C does not take 'alice': full")
    assert digest(here) == before
    here.wait(20.0)
    assert len(here.sent("B", MoveOffer)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": 7},
        {"epoch": "A-9.9"},
        {"client": "bob"},
        {"path": ("A", "C")},
        {"path": ("A",)},
        {"path": ()},
        {"path": ("Z", "B", "C")},
    ],
)
def test_a_reply_to_an_offer_that_was_not_made_counts_for_nothing(wrong: dict[str, Any]) -> None:
    here = place()
    here.ask()
    offer = here.offer()
    right = {"client": "alice", "epoch": offer.epoch, "number": 1, "path": offer.path}
    assert here.hear("B", MoveReply(**(right | wrong), address="inproc://C")) == []
    assert here.counts == {"asked": 1}
    here.accept()
    assert here.counts == {"asked": 1, "done": 1}


def test_a_reply_that_comes_again_after_the_decision_counts_for_nothing() -> None:
    here = place()
    here.ask()
    offer = here.offer()
    here.accept(offer)
    assert here.accept(offer) == []
    assert len(here.sent("B", MoveCommit)) == 1


def test_a_reply_to_an_offer_that_was_withdrawn_counts_for_nothing() -> None:
    here = place()
    here.ask(timeout_s=0.3)
    here.wait(0.4)
    assert refusal(here).error == "NotEffective"
    assert here.accept() == []
    assert here.sent("B", MoveCommit) == []
    assert here.core.durable.sessions.get("alice") is not None


def test_a_reply_to_the_first_offer_does_not_answer_the_next_move() -> None:
    here = place()
    here.ask(timeout_s=0.3)
    first = here.offer()
    here.wait(0.4)
    here.ask("B", number=2)
    assert here.accept(first) == []
    here.accept()
    (commit,) = here.sent("B", MoveCommit)
    assert commit.path == ("A", "B")


# ── deadlines ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("timeout_s", [0.0, -5.0, float("nan")])
def test_no_time_is_too_late_at_once(timeout_s: float) -> None:
    here = place()
    here.ask(timeout_s=timeout_s)
    assert "had no time to be asked for; try again later" in refusal(here).text


def test_no_move_waits_longer_than_an_hour() -> None:
    here = place()
    here.ask(timeout_s=1e12)
    here.wait(LONGEST_S - 1.0)
    assert here.sent("alice", MoveRefusal) == []
    here.wait(2.0)
    assert refusal(here).error == "NotEffective"


def test_a_move_waits_for_requests_and_then_begins() -> None:
    here = place()
    op = here.subscribe_and_wait()
    here.ask()
    assert here.sent("B", MoveOffer) == []
    here.control("B", Echo(op))
    assert len(here.sent("B", MoveOffer)) == 1


def test_a_move_that_waits_for_the_log_for_too_long_is_refused() -> None:
    here = place()
    here.advertise()
    here.is_writing = False
    here.publish(1, 5)
    here.ask(timeout_s=1.0)
    here.accept()
    assert here.sent("B", MoveCommit) == []
    here.wait(1.1)
    assert "waited for its publications to reach the log" in refusal(here).text
    here.write()
    assert here.sent("B", MoveCommit) == []
    assert here.sent("alice", Published)[-1].upto == 1


# ── what is kept back ────────────────────────────────────────────────────────────────────


def test_requests_wait_for_the_move_and_are_taken_after_a_refusal() -> None:
    here = place()
    here.ask(timeout_s=1.0)
    assert here.hear("alice", SubscribeRequest(1, WIDE, wait=False)) == []
    here.wait(1.1)
    told = [frame for _, frame in here.told if isinstance(frame, MoveRefusal | Done)]
    assert [type(each) for each in told] == [MoveRefusal, Done]


def test_publications_are_taken_until_the_target_has_accepted() -> None:
    here = place()
    here.advertise()
    here.ask()
    assert here.publish(1, 5) == [Published(1)]
    here.is_writing = False
    here.publish(2, 6)
    here.accept()
    assert here.publish(3, 7) == []
    here.write()
    (commit,) = here.sent("B", MoveCommit)
    assert commit.carried == 2


def test_publications_behind_a_request_wait_with_it() -> None:
    here = place()
    here.advertise()
    here.ask(timeout_s=1.0)
    here.hear("alice", SubscribeRequest(2, WIDE, wait=False))
    assert here.publish(1, 5) == []
    here.wait(1.1)
    assert here.sent("alice", Published) == [Published(1)]


ENDING = (Step("unadvertise", "0", str(WIDE)),)
"""A plan that ends the advertisement of alice."""


def kept(root: str) -> Place:
    """An operator wants to move alice. A publication of hers waits behind a request."""
    here = Place(root=root)
    here.connect()
    here.advertise()
    here.hear("alice", ConsentRequest(2))
    here.hear("operator", MoveOrder("alice", "C"))
    here.hear("alice", SubscribeRequest(3, WIDE, wait=False))
    assert here.publish(1, 5) == []
    return here


def stays_in_transaction(here: Place) -> None:
    (told,) = here.sent("operator", MoveOrdered)
    assert told.error == "InTransaction"


def test_what_was_kept_back_is_taken_before_a_part_of_a_plan() -> None:
    here = kept(root="B")
    here.control("B", Letter("A", Engage("coord/B-1.9/3", "alice", ENDING, 5.0, ("alice",))))
    stays_in_transaction(here)
    assert here.sent("alice", Published) == [Published(1)]
    assert any(isinstance(each.body, Engaged) for each in here.sent("B", Letter))


def test_what_was_kept_back_is_taken_before_a_plan_that_is_decided_at_once() -> None:
    here = kept(root="A")
    here.control("B", Letter("A", Engage("coord/B-1.9/3", "alice", ENDING, 5.0, ("alice",))))
    stays_in_transaction(here)
    assert here.sent("alice", Published) == [Published(1)]
    assert [each.committed for each in here.sent("alice", Decided)] == [True]


def test_what_was_kept_back_is_taken_before_a_plan_of_another_client_here() -> None:
    here = kept(root="A")
    here.connect("bob")
    here.hear("bob", ExecuteRequest(1, (("alice", ENDING),)))
    stays_in_transaction(here)
    assert here.sent("alice", Published) == [Published(1)]
    assert [each.committed for each in here.sent("alice", Decided)] == [True]


def test_a_letter_to_another_client_ends_no_move() -> None:
    here = Place("B", root="A")
    here.connect()
    here.hear("operator", MoveOrder("alice", "C"))
    here.hear("alice", SubscribeRequest(1, WIDE, wait=False))
    here.control("A", Letter("C", Engage("coord/B-1.9/3", "bob", ENDING, 5.0, ("bob",))))
    assert here.sent("operator", MoveOrdered) == []


def test_an_invitation_ends_a_move_that_waits_for_an_answer() -> None:
    """The client could not answer it before, because what it sends waits."""
    here = Place(root="B")
    here.connect()
    here.subscribe()
    here.hear("operator", MoveOrder("alice", "C"))
    here.control("B", Invite("bob/B-1.1/1", OpId("bob", "B-1.1", 2), "1", body(5), 5.0))
    stays_in_transaction(here)


def test_what_was_kept_back_is_not_taken_twice_when_the_client_comes_again() -> None:
    here = place()
    epoch = here.connect()
    here.advertise()
    here.ask(timeout_s=1.0)
    here.hear("alice", SubscribeRequest(2, WIDE, wait=False))
    here.publish(1, 5)
    here.lose("alice")
    here.connect(resume=epoch)
    here.publish(1, 5)
    here.wait(1.1)
    assert here.sent("alice", Published) == [Published(1)]
    assert here.core.durable.sessions.get("alice").requests == 1  # type: ignore[union-attr]


def test_a_goodbye_ends_the_session_and_the_move() -> None:
    here = place()
    here.ask()
    here.hear("operator", MoveOrder("alice", "C"))
    here.hear("alice", Goodbye())
    (told,) = here.sent("operator", MoveOrdered)
    assert (told.error, told.text) == ("UnknownClient", "its session has ended")
    assert here.accept() == []
    assert here.sent("B", MoveCommit) == []


def test_a_client_that_sends_too_much_is_expelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motet.protocol.mobility.soft.MOST_HELD", 3)
    here = place()
    here.ask()
    for sequence in range(1, 5):
        here.hear("alice", SubscribeRequest(sequence, WIDE, wait=False))
    assert here.closed[here.ends["alice"]] == "ProtocolError"


def test_a_client_that_sends_too_many_bytes_is_expelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motet.protocol.mobility.soft.MOST_HELD_BYTES", 300)
    here = place()
    here.ask()
    here.hear("alice", SubscribeRequest(1, WIDE, wait=False))
    assert here.ends["alice"] not in here.closed
    for sequence in range(2, 20):
        here.hear("alice", SubscribeRequest(sequence, WIDE, wait=False))
    assert here.closed[here.ends["alice"]] == "ProtocolError"


# ── the connection breaks ────────────────────────────────────────────────────────────────


def test_a_client_that_comes_again_asks_again() -> None:
    here = place()
    epoch = here.connect()
    here.ask()
    first = here.offer()
    here.lose("alice")
    here.connect(resume=epoch)
    assert here.accept(first) == []  # it might have changed its mind
    here.ask()
    here.accept()
    (moved,) = here.sent("alice", Moved)
    assert (moved.broker, moved.address) == ("C", "inproc://C")


def test_an_operators_move_goes_on_when_the_client_is_away() -> None:
    here = place()
    here.hear("operator", MoveOrder("alice", "C"))
    here.lose("alice")
    here.accept()
    assert here.sent("operator", MoveOrdered) == [MoveOrdered("alice")]
    assert len(here.sent("B", MoveCommit)) == 1


def test_an_operator_who_leaves_is_not_answered() -> None:
    here = place()
    here.hear("operator", MoveOrder("alice", "C"))
    gone = here.ends["operator"]
    here.lose("operator")
    here.accept()
    assert not any(connection == gone for connection, _ in here.told)
    assert len(here.sent("B", MoveCommit)) == 1


def test_the_same_request_again_is_the_same_move() -> None:
    here = place()
    here.ask()
    assert here.ask() == []
    here.accept()
    assert len(here.sent("alice", Moved)) == 1


def test_a_newer_client_of_the_same_name_moves_or_stays_as_it_likes() -> None:
    here = place()
    here.ask()
    first = here.offer()
    here.connect()  # a new session
    assert here.accept(first) == []
    assert here.sent("B", MoveCommit) == []
    session = here.core.durable.sessions.get("alice")
    assert session is not None
    assert session.epoch != first.epoch


def test_a_restart_forgets_a_move_that_is_not_decided() -> None:
    here = place()
    epoch = here.connect()
    here.ask()
    first = here.offer()
    here.restart()
    assert here.accept(first) == []
    assert here.connect(resume=epoch) == epoch


# ── the target, and brokers on the way ───────────────────────────────────────────────────

OFFER = MoveOffer("alice", "A-1.1", 1, ("A", "B", "C"))


def test_a_broker_on_the_way_passes_offers_and_replies_on() -> None:
    way = Place("B")
    assert way.hear("A", OFFER) == [OFFER]
    reply = MoveReply("alice", "A-1.1", 1, OFFER.path, "inproc://C")
    assert way.hear("C", reply) == [reply]
    assert way.sent("A", MoveReply) == [reply]


def test_a_broker_on_the_way_reports_a_link_that_is_down() -> None:
    way = Place("B")
    way.lose("C")
    (reply,) = way.hear("A", OFFER)
    assert isinstance(reply, MoveReply)
    assert (reply.missing, reply.address) == (("C",), "")


def test_the_target_answers_with_its_address() -> None:
    target = Place("C")
    (reply,) = target.hear("B", OFFER)
    assert reply == MoveReply("alice", "A-1.1", 1, OFFER.path, "inproc://C")
    assert len(target.journal) == len(Place("C").journal)


def test_the_target_refuses_a_client_that_it_has() -> None:
    target = Place("C")
    target.connect()
    (reply,) = target.hear("B", OFFER)
    assert isinstance(reply, MoveReply)
    assert (reply.error, reply.text) == ("MoveRefused", "C has another session of 'alice'")


def test_the_target_asks_everybody_who_may_object() -> None:
    target = Place("C")
    asked: list[MoveOffer] = []

    def too_many(offer: MoveOffer) -> Objection:
        asked.append(offer)
        return Objection("TooManyClients", "C is full")

    target.soft.objectors.append(too_many)
    (reply,) = target.hear("B", OFFER)
    assert isinstance(reply, MoveReply)
    assert (reply.error, reply.text, asked) == ("TooManyClients", "C is full", [OFFER])


@pytest.mark.parametrize(("who", "neighbour"), [("B", "A"), ("C", "B")])
def test_a_broker_that_is_unsure_is_named(who: str, neighbour: str) -> None:
    here = Place(who)
    here.control(neighbour, Complete(False))
    assert here.core.durable.routing.state.unsure
    (reply,) = here.hear(neighbour, OFFER)
    assert isinstance(reply, MoveReply)
    assert reply.missing == (who,)


def test_a_broker_with_covering_refuses_for_all() -> None:
    way = Place("B", covering=True)
    (reply,) = way.hear("A", OFFER)
    assert isinstance(reply, MoveReply)
    assert reply.error == "NotOffered"


@pytest.mark.parametrize(
    "path", [(), ("A",), ("A", "C"), ("B", "A"), ("C", "B", "A"), ("A", "B", "A"), ("A", "B", "B")]
)
def test_an_offer_that_did_not_come_this_way_is_not_answered(path: tuple[str, ...]) -> None:
    way = Place("B")
    assert way.hear("A", MoveOffer("alice", "A-1.1", 1, path)) == []


def test_a_request_with_a_senseless_number_is_answered_with_it() -> None:
    here = place()
    here.hear("alice", MoveRequest(-3, "Z"))
    assert refusal(here).number == -3


def test_a_reply_at_a_broker_that_is_not_on_the_path_is_dropped() -> None:
    way = Place("B")
    assert way.hear("C", MoveReply("alice", "A-1.1", 1, ("A", "C"), "inproc://C")) == []
    assert way.hear("C", MoveReply("alice", "A-1.1", 1, ("X", "B", "C"), "inproc://C")) == []
