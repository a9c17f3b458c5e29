"""The decision at the source: what goes along, what stays, and who is told."""

from __future__ import annotations

import pytest

from motet.model import Hop, OpId
from motet.protocol.contract import Reconfigured
from motet.protocol.delivery.messages import AckUp, Delivered
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.mobility.facts import MoveDecided
from motet.protocol.mobility.messages import (
    ArrivalHello,
    MoveCommit,
    Moved,
    MoveDone,
    MoveOrder,
    MoveOrdered,
    MoveRefusal,
    MoveRequest,
)
from motet.protocol.routing.messages import (
    Advertise,
    ClientGone,
    Echo,
    Rehome,
    Started,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.session.durable import NOWHERE
from motet.protocol.session.messages import (
    ClientHello,
    Processed,
    Published,
    SubscribeRequest,
    UnadvertiseRequest,
    Welcome,
)
from tests.unit.mobility.place import WIDE, Place

BOB = OpId("bob", "B-1.1", 1)


def place(*, keep_s: float = 0.0) -> Place:
    here = Place()
    here.connect(keep_s=keep_s)
    return here


def publisher(*, behind: bool = True) -> Place:
    """Alice has published ticks that bob, behind B, has not acknowledged."""
    here = place()
    here.advertise()
    if behind:
        here.control("B", Subscribe(BOB, WIDE))
    here.publish(1, 5, 6)
    return here


def test_a_start_whose_advertisement_is_still_on_its_way_stays_a_start() -> None:
    """The news of a start goes ahead of its advertisement, and the session may leave in between: at
    the target, too, the advertisement comes later."""
    here = place()
    wish = here.subscribe()
    here.control("B", Started(wish, "B.1", 7))
    commit = here.depart()
    assert dict(commit.starts.known) == {wish: (("B.1", 7),)}
    assert dict(commit.starts.severed) == {wish: ("B.1",)}
    target = Place("C")
    target.control("B", commit)
    starts = target.core.durable.routing.starts
    assert starts.known[wish] == {"B.1": 7}
    target.control("B", Advertise(BOB, WIDE))
    assert starts.lapsed_upto(wish, "B.1") == 0


def test_a_start_with_its_advertisement_goes_as_it_is() -> None:
    here = place()
    here.control("B", Advertise(BOB, WIDE))
    wish = here.subscribe()
    here.control("B", Started(wish, "B.1", 7), Echo(wish))
    assert here.depart().starts.severed == ()


# ── what happens ─────────────────────────────────────────────────────────────────────────


def test_the_decision_is_one_fact() -> None:
    here = place()
    before = len(here.journal)
    here.depart()
    (fact,) = here.journal[before:]
    assert type(fact.body) is MoveDecided


def test_the_session_leaves_with_the_decision_and_its_client_is_sent_on() -> None:
    here = place()
    here.depart()
    assert here.core.durable.sessions.get("alice") is None
    assert here.sent("alice", Moved) == [Moved("C", "inproc://C", 1)]
    assert here.closed[here.ends["alice"]] == "moved to C"
    assert here.core.durable.routing.state.clients.home("alice") == "C"


def test_a_crash_behind_the_decision_does_not_undo_it() -> None:
    here = place()
    commit = here.depart()
    here.restart(lost=1)
    assert here.core.durable.sessions.get("alice") is None
    assert here.sent("B", MoveCommit) == [commit]


def test_rows_point_to_the_next_broker() -> None:
    here = place()
    subscription, advertisement = here.subscribe(sequence=1), here.advertise(sequence=2)
    here.depart()
    state = here.core.durable.routing.state
    for table, op in ((state.subscriptions, subscription), (state.advertisements, advertisement)):
        entry = table.get(op)
        assert entry is not None
        assert entry.source == Hop.broker("B")


def test_what_a_session_has_goes_along() -> None:
    here = place(keep_s=60.0)
    op = here.subscribe(sequence=1)
    here.advertise(sequence=2)
    commit = here.depart()
    assert commit.durable
    assert commit.session.session.requests == 2
    assert [row.id for row in commit.subscriptions] == [op]
    assert [row.filter for row in commit.advertisements] == [WIDE]
    (known,) = commit.starts.known
    assert known[0] == op
    assert op not in here.core.durable.routing.starts.known


# ── publications ─────────────────────────────────────────────────────────────────────────


def test_numbers_of_publications_go_along() -> None:
    commit = publisher().depart()
    assert commit.carried == 2


def test_what_a_broker_has_forgotten_is_told_at_the_new_one() -> None:
    """Its client may send best-effort events again that were delivered before a restart."""
    here = publisher()
    here.restart()
    here.hear("operator", MoveOrder("alice", "C"))
    here.accept()
    (commit,) = here.sent("B", MoveCommit)
    assert commit.forgot


@pytest.mark.parametrize("publishes", [True, False])
def test_a_client_that_was_told_of_a_restart_is_not_told_again(publishes: bool) -> None:
    here = publisher()
    here.restart()
    here.connect(resume="A-1.1")
    assert here.sent("alice", Welcome)[-1].forgot
    if publishes:
        here.publish(3, 7)
        here.hear("operator", MoveOrder("alice", "C"))
    else:
        here.ask("C")
    here.accept()
    (commit,) = here.sent("B", MoveCommit)
    assert not commit.forgot


def test_the_decision_waits_until_the_log_has_what_was_taken() -> None:
    here = publisher()
    here.is_writing = False
    here.publish(3, 7)
    here.ask()
    here.accept()
    assert here.sent("B", MoveCommit) == []
    here.write()
    (commit,) = here.sent("B", MoveCommit)
    assert commit.carried == 3
    assert here.sent("alice", Published)[-1].upto == 3


def test_refusals_go_along() -> None:
    here = place()
    here.publish(1, 5)
    commit = here.depart()
    (refused,) = commit.refused
    assert (refused.sequence, refused.error) == (1, "NotAdvertised")
    assert commit.carried == 1


def test_an_advertisement_leaves_a_residue_while_events_are_owed() -> None:
    here = publisher()
    commit = here.depart()
    (row,) = commit.advertisements
    assert row.residue is not None
    residue = here.core.durable.routing.state.advertisements.get(row.residue)
    assert residue is not None
    assert residue.home == "A"
    assert commit.upto == 0
    (pubend,) = commit.predecessors
    assert pubend == "A.1"
    assert commit.predecessors[pubend] <= commit.tick


def test_an_advertisement_leaves_nothing_when_all_was_acknowledged() -> None:
    here = publisher(behind=False)
    here.wait(10.0)
    commit = here.depart()
    (row,) = commit.advertisements
    assert row.residue is None
    assert commit.predecessors == {}
    assert commit.upto > 0


def test_the_last_cut_goes_along() -> None:
    here = publisher()
    transactions = here.core.durable.transactions
    transactions.cutter.state.last_cut = (5, 1)
    transactions.decisions.unsettled = lambda upto: upto - 1  # type: ignore[method-assign]
    commit = here.depart()
    assert (commit.cut, commit.unsettled) == (5, 4)


def test_logs_are_named_to_readers_although_all_is_acknowledged() -> None:
    here = publisher(behind=False)
    here.wait(10.0)
    commit = here.depart()
    assert commit.predecessors == {}
    assert list(commit.trail) == ["A.1"]
    assert 0 < commit.trail["A.1"] <= commit.tick


def test_a_start_without_advertisements_does_not_leave() -> None:
    """Our log keeps it for a client of ours; one that has left starts anew."""
    here = publisher(behind=False)
    here.connect("zoe")
    wish = here.subscribe("zoe")
    routing = here.core.durable.routing
    assert routing.starts.known[wish]
    here.wait(10.0)
    here.hear("alice", UnadvertiseRequest(2, 1))
    here.wait(10.0)
    assert not list(routing.state.advertisements)
    assert routing.starts.known[wish]
    commit = here.depart(client="zoe")
    assert dict(commit.starts.known).get(wish) == ()
    assert routing.state.subscriptions.entries[wish].start == 0


def test_a_past_without_advertisements_does_not_leave_unnoticed() -> None:
    """Zoe reads it in our log. Where she goes, she cannot, and is told that."""
    here = publisher(behind=False)
    first = here.core.streams.last_tick - 1
    here.wait(10.0)
    here.hear("alice", UnadvertiseRequest(2, 1))
    here.connect("dora")
    here.advertise("dora")
    here.connect("zoe")
    here.hear("zoe", SubscribeRequest(1, WIDE, since={"": 0}, wait=False))
    wish, routing = OpId("zoe", "A-1.3", 1), here.core.durable.routing
    start = routing.starts.known[wish]["A.1"]
    here.hear("dora", UnadvertiseRequest(2, 1))
    here.wait(10.0)
    assert not list(routing.state.advertisements)
    assert [each.ticks for each in here.sent("zoe", Delivered)] == [[first, first + 1]]
    commit = here.depart(client="zoe")
    assert commit.gone == {"A.1": (first, start)}
    assert commit.session.session.since[1] == {"": 0, "A.1": NOWHERE}


def test_a_loss_that_was_not_acknowledged_goes_along() -> None:
    here = place()
    here.control("B", Advertise(BOB, WIDE))
    here.hear("alice", SubscribeRequest(1, WIDE, since={"": 0}, wait=False))
    wish = OpId("alice", "A-1.1", 1)
    here.control("B", Started(wish, "B.1", 7))
    here.lose("alice")
    here.control("B", Unadvertise(BOB, None, 9))
    here.hear("operator", MoveOrder("alice", "C", 10.0))
    here.accept()
    (commit,) = here.sent("B", MoveCommit)
    assert commit.gone == {"B.1": (1, 7)}
    (fact,) = (each.body for each in here.journal if type(each.body) is MoveDecided)
    assert fact.gone == commit.gone


def test_a_client_that_stays_keeps_its_start_when_the_last_publisher_leaves() -> None:
    """It may want older events of our log, which has them, and is behind no broker."""
    here = publisher(behind=False)
    here.connect("zoe")
    wish = here.subscribe("zoe")
    routing = here.core.durable.routing
    known = dict(routing.starts.known[wish])
    assert set(known) == {"A.1"}
    here.wait(10.0)
    commit = here.depart()
    (row,) = commit.advertisements
    assert row.residue is None
    assert routing.starts.known[wish] == known
    assert routing.starts.lapsed_upto(wish, "A.1") == 0
    assert routing.state.subscriptions.entries[wish].start == known["A.1"]


def test_a_residue_goes_when_all_is_acknowledged() -> None:
    here = publisher()
    commit = here.depart()
    (row,) = commit.advertisements
    assert row.residue is not None
    here.hear("B", AckUp("A.1", commit.predecessors["A.1"]))
    here.wait(10.0)
    assert here.core.durable.routing.state.advertisements.get(row.residue) is None


def test_nobody_off_the_path_is_told_of_a_subscriber() -> None:
    way = Place("B")
    here = place()
    here.subscribe()
    way.control("A", here.depart("B"))
    assert way.sent("C", Rehome) == []


def test_a_client_stays_whose_path_ends_before_the_decision() -> None:
    """The next broker is taken out of the overlay while the log has not all publications."""
    here = Place("B")
    here.connect()
    here.advertise()
    here.is_writing = False
    here.publish(1, 5)
    here.ask()
    here.accept()
    here.ends.pop("C")
    here.step(Reconfigured(("A",)))
    (refusal,) = here.sent("alice", MoveRefusal)
    assert (refusal.error, refusal.missing) == ("NotEffective", ("C",))
    here.write()
    assert here.core.durable.sessions.get("alice") is not None
    assert here.sent("alice", Published)[-1].upto == 1


# ── positions ────────────────────────────────────────────────────────────────────────────


def test_levels_and_doubts_of_all_pubends_go_along() -> None:
    here = place()
    here.subscribe(sequence=1)
    here.advertise(sequence=2)
    here.publish(1, 5)
    commit = here.depart()
    assert set(commit.levels) == {"A.1"}
    assert commit.doubts["A.1"] > commit.levels["A.1"]


def test_what_was_acknowledged_is_below_the_level() -> None:
    here = place()
    here.subscribe(sequence=1)
    here.advertise(sequence=2)
    here.publish(1, 5)
    tick = here.core.streams.machine.frontier("A.1")
    here.hear("alice", Processed("A.1", tick))
    assert here.depart().levels == {"A.1": tick}


def test_a_path_is_pinned_until_it_is_done() -> None:
    here = place()
    here.subscribe(sequence=1)
    here.advertise(sequence=2)
    here.publish(1, 5)
    commit = here.depart()
    assert here.durable.pins == commit.levels
    here.control("B", MoveDone("alice", commit.epoch, commit.number))
    assert here.durable.pins == {}
    assert here.durable.leftovers() == []


def test_pins_survive_a_restart() -> None:
    here = place()
    here.subscribe(sequence=1)
    here.advertise(sequence=2)
    here.publish(1, 5)
    commit = here.depart()
    here.restart()
    assert here.durable.pins == commit.levels


# ── done ─────────────────────────────────────────────────────────────────────────────────


def test_rows_that_nobody_needs_go_behind_done() -> None:
    here = place()
    op = here.subscribe()
    commit = here.depart()
    assert here.core.durable.routing.state.subscriptions.get(op) is not None
    here.control("B", MoveDone("alice", commit.epoch, commit.number), Unsubscribe(op, BOB))
    assert here.core.durable.routing.state.subscriptions.get(op) is None
    assert here.sent("B", Echo) == [Echo(BOB)]
    assert here.durable.leftovers() == []


@pytest.mark.parametrize(
    "done",
    [
        MoveDone("bob", "A-1.1", 1),
        MoveDone("alice", "A-9.9", 1),
        MoveDone("alice", "", 0),
    ],
)
def test_done_for_a_move_that_is_not_under_way_counts_for_nothing(done: MoveDone) -> None:
    here = place()
    here.depart()
    here.control("B", done)
    assert here.durable.leftovers() == ["alice is in transit"]


def test_done_that_comes_again_counts_for_nothing() -> None:
    here = place()
    op = here.subscribe()
    commit = here.depart()
    here.control("B", MoveDone("alice", commit.epoch, commit.number))
    here.control("B", MoveDone("alice", commit.epoch, commit.number))
    assert here.core.durable.routing.state.subscriptions.get(op) is not None
    assert here.durable.leftovers() == []


# ── whoever comes to the former broker ───────────────────────────────────────────────────


def test_a_client_that_resumes_is_sent_on() -> None:
    here = place()
    commit = here.depart()
    here.ends.pop("alice")
    hello = ClientHello(PROTOCOL_VERSION, "alice", commit.epoch)
    assert here.hear("alice", hello) == [Moved("C", "inproc://C", 1)]


def test_a_client_that_is_early_at_its_former_broker_is_sent_on() -> None:
    here = place()
    commit = here.depart()
    here.ends.pop("alice")
    hello = ClientHello(PROTOCOL_VERSION, "alice", commit.epoch)
    here.hear("alice", ArrivalHello(PROTOCOL_VERSION, hello))
    here.wait(5.0)
    assert here.sent("alice", Moved) == [Moved("C", "inproc://C", 1)]


def test_a_client_that_knows_of_the_move_is_sent_on_at_once() -> None:
    here = place()
    commit = here.depart()
    here.ends.pop("alice")
    hello = ClientHello(PROTOCOL_VERSION, "alice", commit.epoch)
    told = here.hear("alice", ArrivalHello(PROTOCOL_VERSION, hello, commit.number))
    assert told == [Moved("C", "inproc://C", commit.number)]


def test_a_client_waits_if_a_later_move_brings_its_session_back() -> None:
    here = place()
    commit = here.depart()
    here.ends.pop("alice")
    hello = ClientHello(PROTOCOL_VERSION, "alice", commit.epoch)
    here.hear("alice", ArrivalHello(PROTOCOL_VERSION, hello, commit.number + 1))
    here.wait(5.0)
    assert not here.sent("alice", Moved)


def test_a_process_that_adopts_a_durable_session_is_sent_on() -> None:
    here = place(keep_s=60.0)
    here.depart()
    here.ends.pop("alice")
    hello = ClientHello(PROTOCOL_VERSION, "alice", None, keep_s=60.0)
    assert here.hear("alice", hello) == [Moved("C", "inproc://C", 1)]


def test_a_new_client_of_the_same_name_is_not_sent_on() -> None:
    here = place()
    commit = here.depart()
    assert here.connect() != commit.epoch


def test_nobody_is_sent_on_when_the_session_has_ended() -> None:
    here = place()
    commit = here.depart()
    here.control("B", MoveDone("alice", commit.epoch, commit.number))
    here.control("B", ClientGone("alice", commit.epoch))
    assert here.durable.forwarding("alice", commit.epoch) is None
    assert not here.durable.state.forwardings  # or there would be one of each client for ever
    here.ends.pop("alice")
    told = here.hear("alice", ClientHello(PROTOCOL_VERSION, "alice", commit.epoch))
    assert not any(isinstance(each, Moved) for each in told)


def test_a_lease_that_ends_before_the_decision_ends_the_move() -> None:
    here = place()
    here.hear("operator", MoveOrder("alice", "C", 10 * here.config.lease_s))
    here.lose("alice")
    here.wait(here.config.lease_s + 1.0)
    assert here.core.durable.sessions.get("alice") is None
    assert [told.error for told in here.sent("operator", MoveOrdered)] == ["UnknownClient"]
    here.accept()
    assert here.sent("B", MoveCommit) == []


def test_a_lease_does_not_end_what_has_left() -> None:
    here = place()
    commit = here.depart()
    here.wait(here.config.lease_s + 1.0)
    clients = here.core.durable.routing.state.clients
    assert (commit.client, commit.epoch) in clients
    assert here.durable.forwarding("alice", commit.epoch) is not None


# ── again ────────────────────────────────────────────────────────────────────────────────


def test_a_client_that_comes_back_may_leave_again() -> None:
    here = place()
    here.subscribe(sequence=1)
    first = here.depart()
    here.control("B", MoveDone("alice", first.epoch, first.number))
    back = MoveCommit(
        *("alice", first.epoch, first.number + 1, ("C", "B", "A"), False),
        *(first.session, first.subscriptions, (), first.starts, {}, {"C.1": 7}),
    )
    here.control("B", back)
    assert here.durable.forwarding("alice", first.epoch) is None
    assert here.connect(resume=first.epoch) == first.epoch
    here.strays("B", move=2, last=True)
    here.ask(number=2)
    here.accept()
    again = here.sent("B", MoveCommit)[-1]
    assert again.number == first.number + 2
    assert again.doubts["C.1"] == 7


def test_requests_that_were_kept_back_are_left_to_the_client() -> None:
    here = place()
    here.ask()
    here.hear("alice", MoveRequest(2, "B"))
    assert here.core.durable.sessions.get("alice") is not None
    here.accept()
    told = [frame for _, frame in here.told]
    assert not any(isinstance(each, Welcome) for each in told[-2:])
    assert len(here.sent("B", MoveCommit)) == 1
