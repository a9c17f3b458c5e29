"""Deliberate bugs in moves that random runs show rarely or never: a scenario, or the test of one
broker, notices each of them. `motet.testing.bugs.moves` has those that random runs show. Decision
39 tells which rule each of them breaks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from motet.errors import InvariantError
from motet.model import OpId
from motet.protocol.changes import Sent, SessionPassed
from motet.protocol.delivery.blocks import BlockQueues
from motet.protocol.delivery.clients import Clients
from motet.protocol.delivery.gates import Passage
from motet.protocol.delivery.pubend import Unlogged
from motet.protocol.link.soft import Inquiries
from motet.protocol.mobility import durable as durable_mobility
from motet.protocol.mobility import state as mobility_state
from motet.protocol.mobility.durable import DurableMobility
from motet.protocol.mobility.facts import MoveDecided
from motet.protocol.mobility.messages import MoveCommit, MoveReply
from motet.protocol.mobility.soft import SoftMobility
from motet.protocol.mobility.state import Transit, key_of, pinned_by
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.relocation import Relocation
from motet.protocol.routing.starts import Starts
from motet.protocol.routing.state import REMOVALS, RoutingState, Wait
from motet.protocol.session.state import Session
from motet.testing.scenario import replay
from tests.unit.delivery import test_gates as gates
from tests.unit.mobility import test_arrival as arrival
from tests.unit.mobility import test_asking as asking
from tests.unit.mobility import test_decision as decision
from tests.unit.mobility import test_path as path
from tests.unit.mobility import test_rows as rows

SCENARIOS = Path(__file__).parents[2] / "scenarios" / "mobility"
NOTICED = (AssertionError, InvariantError, LookupError, ValueError)
"""A test that finds less than it looks for notices it, too."""

Patch = pytest.MonkeyPatch
Test = Callable[[], None]


def scenario(name: str) -> Test:
    """What clients are told, and what logs drop, is as the scenario says."""
    file = SCENARIOS / f"{name}.txt"

    def check() -> None:
        told, expected = replay(file), file.read_text()
        assert outcome(told) == outcome(expected)

    return check


def outcome(told: str) -> list[str]:
    clients = "|".join(re.findall(r"^connect (\w+)", told, re.MULTILINE))
    return re.findall(rf"^(?:\w+ > (?:{clients}): .*|the log of .*)$", told, re.MULTILINE)


def deciding(patch: Patch, **changes: Any) -> None:
    """The source leaves something out of its decision."""
    real = DurableMobility._decided

    def decided(self: DurableMobility, fact: MoveDecided) -> None:
        real(self, replace(fact, **changes))

    patch.setattr(DurableMobility, "_decided", decided)


# ── a subscriber ─────────────────────────────────────────────────────────────────────────


def where_a_client_is_owed_from_is_soft(patch: Patch) -> None:
    """After a restart the target does not know the levels and doubts of clients that have moved
    there."""
    arrived, arrivals, doubt = SoftMobility._arrived, SoftMobility._arrivals, SoftMobility._doubt
    lately: dict[str, None] = {}

    def begin(self: SoftMobility, *args: Any) -> None:
        lately.clear()
        real(self, *args)

    def note(self: SoftMobility, news: Any, *args: Any) -> None:
        lately[news.client] = None
        arrived(self, news, *args)

    real = SoftMobility.__init__
    patch.setattr(SoftMobility, "__init__", begin)
    patch.setattr(SoftMobility, "_arrived", note)
    patch.setattr(
        SoftMobility, "_arrivals", lambda self, client: arrivals(self, client) if client else ()
    )
    patch.setattr(
        SoftMobility,
        "_doubt",
        lambda self, client, pubend: doubt(self, client, pubend) if client in lately else 0,
    )


def doubts_are_soft(patch: Patch) -> None:
    """After a restart the target does not know what is doubted."""
    arrived, doubt, real = SoftMobility._arrived, SoftMobility._doubt, SoftMobility.__init__
    lately: dict[str, None] = {}

    def begin(self: SoftMobility, *args: Any) -> None:
        lately.clear()
        real(self, *args)

    def note(self: SoftMobility, news: Any, *args: Any) -> None:
        lately[news.client] = None
        arrived(self, news, *args)

    patch.setattr(SoftMobility, "__init__", begin)
    patch.setattr(SoftMobility, "_arrived", note)
    patch.setattr(
        SoftMobility,
        "_doubt",
        lambda self, client, pubend: doubt(self, client, pubend) if client in lately else 0,
    )


def doubts_stay_behind(patch: Patch) -> None:
    """A client that moves on leaves the doubts of its last move behind."""
    real = DurableMobility._decided

    def decided(self: DurableMobility, fact: MoveDecided) -> None:
        travel = self.travel(fact.client, fact.epoch)
        if travel is not None:
            travel.doubts.clear()
        real(self, fact)

    patch.setattr(DurableMobility, "_decided", decided)


def only_known_pubends_are_pinned(patch: Patch) -> None:
    """A pubend where a subscription may have started without its broker knowing is not pinned."""
    known = lambda commit: dict(commit.levels)  # noqa: E731
    patch.setattr(durable_mobility, "pinned_by", known)
    patch.setattr(mobility_state, "pinned_by", known)


def pins_are_forgotten_with_a_snapshot(patch: Patch) -> None:
    """A broker that restarts from a snapshot does not know who has passed it."""
    real = DurableMobility.restore

    def restore(self: DurableMobility, image: bytes) -> None:
        real(self, image)
        self.pins.clear()

    patch.setattr(DurableMobility, "restore", restore)


def old_acknowledgements_count(patch: Patch) -> None:
    """An acknowledgement that was sent before a client arrived behind the sender is taken for one
    that includes it."""
    real = SoftMobility._fenced_ack

    def fenced_ack(self: SoftMobility, connection: int, peer: Any, frame: Any, *rest: Any) -> None:
        after = max(frame.after, self._durable.state.swept.get(peer.name, 0))
        real(self, connection, peer, replace(frame, after=after), *rest)

    patch.setattr(SoftMobility, "_fenced_ack", fenced_ack)


def acknowledgements_may_be_ahead_of_control(patch: Patch) -> None:
    """One that follows control which has not come is believed."""
    real = SoftMobility._fenced_ack

    def fenced_ack(self: SoftMobility, connection: int, peer: Any, frame: Any, *rest: Any) -> None:
        received = self._shared.links[peer.name].ledger.record.received
        real(self, connection, peer, replace(frame, after=min(frame.after, received)), *rest)

    patch.setattr(SoftMobility, "_fenced_ack", fenced_ack)


def acknowledgements_do_not_say_what_they_follow(patch: Patch) -> None:
    patch.setattr(SoftMobility, "_fence", lambda _self, _neighbour, ack: ack)


def starts_are_told_ahead_of_the_commit(patch: Patch) -> None:
    """A start goes to the next broker before the rows that it needs there."""

    def pass_on(self: DurableMobility, commit: MoveCommit, before: Any, after: Any) -> None:
        moving = durable_mobility._relocated(commit)
        transit = Transit(commit, before.name if before.is_broker else "", after.name)
        self.state.transits[key_of(commit.client, commit.epoch)] = transit
        self.pins.add(pinned_by(commit))
        self._bus.carry(self._relocation.turn(moving, before, after))
        self._bus.carry(self._relocation.begin(moving))
        self._bus.emit(Sent(after.name, commit))
        self._bus.emit(SessionPassed(commit.client, commit.epoch))

    patch.setattr(DurableMobility, "_pass_on", pass_on)


def lifts_on_the_way_are_not_noted(patch: Patch) -> None:
    """A publisher that has left while the client was on its way counts as one that is there."""
    patch.setattr(Relocation, "lift_starts", lambda *_: [])


def own_starts_are_kept(patch: Patch) -> None:
    """A start that the source's own log has kept without an advertisement goes along."""
    patch.setattr(Relocation, "_lift_own", lambda *_: [])


def losses_stay_behind(patch: Patch) -> None:
    """The target does not know which part of a wanted past is gone."""
    deciding(patch, gone={})


def pasts_go_unnoticed(patch: Patch) -> None:
    """A past that can be read at the source alone, or goes while its reader is on its way, is not
    reported as lost."""
    patch.setattr(DurableMobility, "_gone", lambda *_: {})


def own_starts_are_not_known(patch: Patch) -> None:
    """The target waits for news of starts in its own log, which go to the former broker."""
    patch.setattr(Relocation, "know_own_starts", lambda *_: None)


def a_client_in_total_order_asks_for_nothing(patch: Patch) -> None:
    """One that has arrived does not ask for the starts that it lacks."""
    patch.setattr(Routing, "await_all", lambda *_: None)


# ── a publisher ──────────────────────────────────────────────────────────────────────────


def refusals_stay_behind(patch: Patch) -> None:
    """The target does not know which publications were refused."""
    deciding(patch, refused=())


def the_decision_does_not_wait_for_the_log(patch: Patch) -> None:
    """A session leaves before its last publications are durable."""
    real = SoftMobility._advance

    def advance(self: SoftMobility, *args: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Unlogged, "answers", lambda *_: False)
            real(self, *args)

    patch.setattr(SoftMobility, "_advance", advance)


def earlier_predecessors_stay_behind(patch: Patch) -> None:
    """A publisher that moves on names only its last log."""
    real = DurableMobility._decided

    def decided(self: DurableMobility, fact: MoveDecided) -> None:
        travel = self.travel(fact.client, fact.epoch)
        if travel is not None:
            travel.predecessors.clear()
        real(self, fact)

    patch.setattr(DurableMobility, "_decided", decided)


def the_trail_stays_behind(patch: Patch) -> None:
    """Logs whose events everybody has acknowledged are not named to readers."""
    deciding(patch, logged=0)


def a_new_home_lifts_nothing(patch: Patch) -> None:
    """Off the path, subscriptions still expect events from the former log."""
    real = Routing._rehomed

    def rehomed(self: Routing, *args: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Starts, "lift", lambda *_: None)
            real(self, *args)

    patch.setattr(Routing, "_rehomed", rehomed)


def the_former_log_is_not_lifted(patch: Patch) -> None:
    """The same on the path."""
    patch.setattr(Relocation, "_lift", lambda *_: None)


def cuts_stay_behind(patch: Patch) -> None:
    """The target does not know for which decisions the former log has cut."""
    deciding(patch, cut=0, unsettled=0)


def a_record_is_noted_once_per_life(patch: Patch) -> None:
    """A publisher that returns to a broker finds its earlier record there."""
    real, noted = SoftMobility._open_gate, dict.fromkeys([""])

    def open_gate(self: SoftMobility, client: str, *args: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            key = f"{client} at {self._shared.name}"
            if key in noted:
                inner.setattr(DurableMobility, "predecessors", lambda *_: {})
            real(self, client, *args)
            if client not in self._gates:
                noted[key] = None

    patch.setattr(SoftMobility, "_open_gate", open_gate)


def a_record_is_not_noted_after_a_restart(patch: Patch) -> None:
    """A broker that restarts lets clients publish that had arrived before."""
    real = SoftMobility.__init__

    def begin(self: SoftMobility, *args: Any) -> None:
        real(self, *args)
        self._gates.clear()

    patch.setattr(SoftMobility, "__init__", begin)


def a_record_is_not_noted_for_later_starts(patch: Patch) -> None:
    """A subscription that starts above a record does not find it."""
    patch.setattr(SoftMobility, "_precede_again", lambda *_: None)


def a_record_is_only_noted(patch: Patch) -> None:
    """A client passes a record when it has been given the earlier events."""

    def is_below(self: Passage, pubend: str, tick: int) -> bool:
        position = self.positions.get(pubend)
        if position is None or not position.present:
            return position is not None
        return position.standing(self._stream(pubend).subend.horizon) < tick

    patch.setattr(Passage, "_is_below", is_below)


def a_block_that_waits_is_passed(patch: Patch) -> None:
    """Earlier events that wait in a block are not waited for."""
    real = Passage._is_below

    def is_below(self: Passage, pubend: str, tick: int) -> bool:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(BlockQueues, "holds", lambda *_: False)
            return real(self, pubend, tick)

    patch.setattr(Passage, "_is_below", is_below)


def a_durable_client_passes_before_it_is_noted(patch: Patch) -> None:
    """A broker gives a durable client the later events before it has noted that the client has the
    earlier ones."""

    def opened(self: Clients, pubend: str, out: Any) -> None:
        names, _ = self.gates.opened(pubend)
        for name in names:
            self.catch_up(self._stream(name), out)

    patch.setattr(Clients, "_open", opened)


def ticks_begin_anew(patch: Patch) -> None:
    """The target's log does not go on above the ticks of the source."""
    real = DurableMobility._arrive

    def arrive(self: DurableMobility, commit: MoveCommit, source: Any) -> None:
        real(self, replace(commit, tick=0), source)

    patch.setattr(DurableMobility, "_arrive", arrive)


def cuts_are_not_waited_for(patch: Patch) -> None:
    """A publisher that arrives does not wait for decisions that its former log had cut for."""
    real = SoftMobility._may_publish

    def may_publish(self: SoftMobility, travel: Any) -> bool:
        before, travel.unsettled = travel.unsettled, 0
        try:
            return real(self, travel)
        finally:
            travel.unsettled = before

    patch.setattr(SoftMobility, "_may_publish", may_publish)


def an_unsure_broker_takes_publications(patch: Patch) -> None:
    """A publisher that arrives does not wait until all subscriptions are known."""
    real = SoftMobility._may_publish

    def may_publish(self: SoftMobility, travel: Any) -> bool:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(RoutingState, "unsure", False)
            return real(self, travel)

    patch.setattr(SoftMobility, "_may_publish", may_publish)


def plans_do_not_wait_for_arrivals(patch: Patch) -> None:
    """A plan goes on before all subscribers know where its publisher is."""
    patch.setattr(DurableMobility, "_is_arriving", lambda *_: False)


# ── the move itself ──────────────────────────────────────────────────────────────────────


def any_reply_answers_an_offer(patch: Patch) -> None:
    """A reply to an earlier offer counts."""
    real = SoftMobility._replied

    def replied(
        self: SoftMobility, connection: int, peer: Any, reply: MoveReply, *rest: Any
    ) -> None:
        departure = self._departures.get(reply.client)
        if departure is not None:
            reply = replace(reply, number=departure.attempt)
        real(self, connection, peer, reply, *rest)

    patch.setattr(SoftMobility, "_replied", replied)


def open_transactions_move(patch: Patch) -> None:
    patch.setattr(SoftMobility, "_is_in_transaction", lambda *_: False)


def plans_overtake_what_waits_for_a_move(patch: Patch) -> None:
    """A part of a plan is taken before what its client has sent earlier, and is kept for a move."""
    patch.setattr(SoftMobility, "_meet", lambda *_: None)


def transactions_wait_for_the_answer_to_an_offer(patch: Patch) -> None:
    """A client that is invited cannot answer until the target of its move has replied."""
    patch.setattr(SoftMobility, "_awaits_reply", lambda _, departure: departure.phase == "offering")


def commits_come_from_anywhere(patch: Patch) -> None:
    """A broker believes a commit that does not come from where the client was."""
    patch.setattr(DurableMobility, "_may_come", lambda *_: True)


def a_session_that_was_replaced_goes_on(patch: Patch) -> None:
    """A session whose client has a newer one lives where it arrives."""
    patch.setattr(durable_mobility, "is_newer", lambda *_args, **_more: False)


def a_lease_does_not_begin_anew(patch: Patch) -> None:
    """A session whose client does not follow stays for ever."""
    patch.setattr(Session, "expires_at", lambda *_: float("inf"))


def a_path_without_an_end_is_waited_for(patch: Patch) -> None:
    """A broker takes a session for invalid whose next broker is no neighbour any more."""
    patch.setattr(DurableMobility, "_end", lambda *_: None)


def accepted_clients_are_unknown(patch: Patch) -> None:
    """A client whose offer was accepted is greeted before its session has come."""
    patch.setattr(SoftMobility, "_accept", lambda *_: None)


def sessions_on_their_way_to_an_empty_broker_are_waited_for(patch: Patch) -> None:
    """The next broker has lost its state, and pins stay."""
    patch.setattr(DurableMobility, "_forget", lambda *_: None)


def removals_wait_in_both_directions(patch: Patch) -> None:
    """A removal that a neighbour asks for also waits for one at this neighbour."""

    def ahead(self: RoutingState, wait: Wait) -> Iterator[tuple[OpId, int]]:
        waits = self.waits
        others = [each for each in waits.removals.get(wait.target, ()) if each != wait.op]
        return ((each, waits[each].missing) for each in others if wait.what in REMOVALS)

    patch.setattr(RoutingState, "ahead", ahead)


def inquiries_keep_the_name_of_a_removal(patch: Patch) -> None:
    """A neighbour is asked about a removal that it has never heard of."""

    def questions(self: Inquiries, op: OpId) -> Iterator[tuple[str, OpId]]:
        return ((name, op) for name in self._waiting(op))

    patch.setattr(Inquiries, "_questions", questions)


def nobody_waits_for_clients_on_their_way(patch: Patch) -> None:
    """An advertisement, or a probe, is echoed although a client in total order that has passed has
    not asked for its start."""
    patch.setattr(DurableMobility, "_holds", lambda *_: False)


PLANTED: list[tuple[Callable[[Patch], None], Test]] = [
    (where_a_client_is_owed_from_is_soft, scenario("move-target-crashes")),
    (doubts_are_soft, scenario("move-target-crashes")),
    (doubts_stay_behind, arrival.test_doubts_go_along_with_the_next_move),
    (only_known_pubends_are_pinned, scenario("move-start-under-way")),
    (pins_are_forgotten_with_a_snapshot, path.test_pins_come_back_with_a_snapshot),
    (old_acknowledgements_count, path.test_an_acknowledgement_from_before_done_is_void),
    (
        acknowledgements_may_be_ahead_of_control,
        path.test_an_acknowledgement_that_is_ahead_of_control_is_dropped,
    ),
    (
        acknowledgements_do_not_say_what_they_follow,
        path.test_a_neighbour_that_was_told_of_an_arrival_gets_fenced_acknowledgements,
    ),
    (starts_are_told_ahead_of_the_commit, path.test_starts_are_told_behind_the_commit),
    (lifts_on_the_way_are_not_noted, scenario("move-lift-passed")),
    (own_starts_are_kept, decision.test_a_start_without_advertisements_does_not_leave),
    (losses_stay_behind, decision.test_a_loss_that_was_not_acknowledged_goes_along),
    (pasts_go_unnoticed, decision.test_a_past_without_advertisements_does_not_leave_unnoticed),
    (
        pasts_go_unnoticed,
        arrival.test_a_past_that_goes_while_its_reader_is_on_its_way_is_reported,
    ),
    (own_starts_are_not_known, arrival.test_starts_of_the_log_at_the_target_need_no_news),
    (
        a_client_in_total_order_asks_for_nothing,
        arrival.test_a_client_in_total_order_asks_for_starts_that_it_lacks,
    ),
    (
        nobody_waits_for_clients_on_their_way,
        path.test_an_advertisement_is_echoed_when_clients_in_total_order_have_arrived,
    ),
    (refusals_stay_behind, decision.test_refusals_go_along),
    (
        the_decision_does_not_wait_for_the_log,
        decision.test_the_decision_waits_until_the_log_has_what_was_taken,
    ),
    (earlier_predecessors_stay_behind, arrival.test_predecessors_go_along_with_the_next_move),
    (a_new_home_lifts_nothing, path.test_a_new_home_lifts_the_starts_at_the_former_one),
    (
        the_former_log_is_not_lifted,
        rows.test_starts_at_the_former_log_lapse_with_the_advertisement,
    ),
    (cuts_stay_behind, decision.test_the_last_cut_goes_along),
    (the_trail_stays_behind, decision.test_logs_are_named_to_readers_although_all_is_acknowledged),
    (a_record_is_noted_once_per_life, scenario("move-record-again")),
    (
        a_record_is_not_noted_after_a_restart,
        arrival.test_predecessors_are_named_again_after_a_restart,
    ),
    (
        a_record_is_not_noted_for_later_starts,
        arrival.test_a_later_start_finds_the_predecessors_named_above_it,
    ),
    (a_record_is_only_noted, gates.test_an_absent_client_meets_the_record_again),
    (a_block_that_waits_is_passed, gates.test_a_lost_pubend_is_reported_before_the_gate_opens),
    (
        a_durable_client_passes_before_it_is_noted,
        gates.test_a_durable_position_in_the_earlier_pubend_is_noted_before_later_events_are_given,
    ),
    (ticks_begin_anew, arrival.test_ticks_go_on_above_those_of_the_source),
    (
        cuts_are_not_waited_for,
        arrival.test_nobody_publishes_before_the_log_has_cut_as_far_as_the_former_one,
    ),
    (an_unsure_broker_takes_publications, arrival.test_nobody_publishes_while_a_broker_is_unsure),
    (
        plans_do_not_wait_for_arrivals,
        arrival.test_a_plan_waits_until_all_subscribers_know_where_a_client_publishes,
    ),
    (
        any_reply_answers_an_offer,
        asking.test_a_reply_to_the_first_offer_does_not_answer_the_next_move,
    ),
    (open_transactions_move, asking.test_a_client_in_an_open_transaction_stays),
    (
        plans_overtake_what_waits_for_a_move,
        asking.test_what_was_kept_back_is_taken_before_a_plan_that_is_decided_at_once,
    ),
    (
        plans_overtake_what_waits_for_a_move,
        asking.test_what_was_kept_back_is_taken_before_a_plan_of_another_client_here,
    ),
    (
        transactions_wait_for_the_answer_to_an_offer,
        asking.test_an_invitation_ends_a_move_that_waits_for_an_answer,
    ),
    (commits_come_from_anywhere, path.test_a_commit_of_a_session_that_is_elsewhere_is_ignored),
    (
        a_session_that_was_replaced_goes_on,
        arrival.test_a_session_whose_client_has_a_newer_one_ends_as_it_arrives,
    ),
    (a_lease_does_not_begin_anew, arrival.test_a_lease_begins_anew),
    (
        a_path_without_an_end_is_waited_for,
        path.test_a_session_ends_where_the_next_broker_is_no_neighbour_any_more,
    ),
    (accepted_clients_are_unknown, arrival.test_a_client_may_come_before_any_news_of_its_session),
    (
        sessions_on_their_way_to_an_empty_broker_are_waited_for,
        path.test_a_session_that_was_on_its_way_to_an_empty_broker_is_not_waited_for,
    ),
    (
        removals_wait_in_both_directions,
        path.test_a_removal_does_not_wait_for_one_in_the_other_direction,
    ),
    (
        inquiries_keep_the_name_of_a_removal,
        path.test_an_inquiry_about_a_removal_goes_on_where_it_waits,
    ),
]


@pytest.mark.parametrize(("bug", "test"), PLANTED, ids=[bug.__name__ for bug, _ in PLANTED])
def test_a_bug_is_noticed(bug: Callable[[Patch], None], test: Test, monkeypatch: Patch) -> None:
    test()
    bug(monkeypatch)
    with pytest.raises(NOTICED):
        test()
