"""Two replicas of a site: what leaves the primary, who leads, and what peers may claim."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from motet.errors import MisuseError
from motet.protocol.contract import Dialled, Fact, Received
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.sequencing.facts import TopicsNamed
from motet.protocol.sequencing.messages import (
    LAST_NUMBER,
    UNGIVEN,
    AskNumbers,
    Confirm,
    NumberRequest,
    OrderHello,
    OrderWelcome,
    Told,
    TopicQuery,
)
from motet.protocol.sequencing.standby import (
    PAIR,
    WITNESS,
    PairHello,
    PromoteAnswer,
    PromoteRequest,
    RegisterTold,
    SiteFacts,
    SiteFactsAck,
    SiteImagePart,
)
from motet.sequencer import records
from motet.sequencer.config import SiteConfig
from motet.sequencer.core import SiteCore
from motet.sequencer.seat import Seat
from tests.unit.sequencer.trio import Trio


@pytest.fixture
def trio() -> Trio:
    made = Trio()
    made.meet()
    return made


def told(term: int, primary: int, standby: int = 0, witness: int = 77) -> RegisterTold:
    return RegisterTold(witness, term, primary, standby, "a" if primary == 1 else "b")


def witness_of(trio: Trio, name: str) -> int:
    connection: int = trio.cores[name].pair.witness
    return connection


def pair_of(trio: Trio, name: str) -> int:
    connection: int = trio.cores[name].pair.connection
    return connection


def promoted(trio: Trio, name: str, *, risk: bool = False) -> PromoteAnswer:
    trio.step(name, Received(trio.number(), PromoteRequest(risk)))
    answers = [frame for _, frame in trio.outputs[name].deliver]
    trio.run()
    assert isinstance(answers[-1], PromoteAnswer)
    return answers[-1]


# ── in step ──────────────────────────────────────────────────────────────────────────────


def test_a_standby_gets_the_state_and_is_in_step(trio: Trio) -> None:
    one, other = trio.cores["a"], trio.cores["b"]
    assert (trio.seat("a").leads, trio.seat("a").standby, trio.seat("a").term) == (True, 2, 2)
    assert (trio.seat("b").leads, trio.seat("b").in_step, trio.seat("b").term) == (False, True, 2)
    client = trio.client("p")
    assert trio.request(client, 1)
    assert one.durable.site_digest() == other.durable.site_digest()
    assert one.status()["pair"]["in_step"]
    assert other.status()["pair"]["role"] == "standby"


def test_nothing_leaves_before_the_standby_has_it(trio: Trio) -> None:
    client = trio.client("p")
    trio.request(client, 1)
    trio.held.add(("b", "a"))  # its acknowledgements
    assert not trio.request(client, 2)
    assert trio.cores["a"].withheld() == 1
    trio.release()
    assert trio.cores["a"].withheld() == 0


def test_clients_learn_both_addresses_and_the_founding(trio: Trio) -> None:
    trio.client("p")
    welcome = trio.said[-1]
    assert isinstance(welcome, OrderWelcome)
    assert dict(welcome.line) == {"S1": "a,b"}
    assert welcome.founding == 1


def test_a_standby_sends_clients_to_its_primary(trio: Trio) -> None:
    trio.client("p", at="b")
    close = trio.closed[-1]
    assert (close.error, "not primary; try a" in close.text) == ("NoClientsHere", True)


def test_after_a_short_break_only_what_is_missing_is_sent(trio: Trio) -> None:
    client = trio.client("p")
    trio.part("b", "a")
    trio.tell("a", client, TopicQuery(("t",)), NumberRequest(1, (0,)))
    trio.connect("b", "a")
    parts = [f for _, f in trio.outputs["a"].feed if isinstance(f, SiteImagePart)]
    trio.beat(2)
    assert trio.cores["a"].durable.site_digest() == trio.cores["b"].durable.site_digest()
    assert not parts or trio.seat("a").standby == 2
    assert trio.seat("a").standby == 2


def test_what_waits_on_a_superseded_connection_is_never_sent(trio: Trio) -> None:
    trio.request(trio.client("p"), 1)
    trio.held.add(("b", "a"))
    old = trio.client("q")
    assert not trio.request(old, 1)
    trio.client("q")
    close = next(each for each in trio.closed if each.connection == old)
    assert (close.text, close.at_once) == ("a newer connection took over", True)


def test_a_peer_that_is_expelled_is_forgotten_at_once(trio: Trio) -> None:
    client = trio.client("p")
    trio.tell("a", client, TopicQuery(("",)))
    assert trio.closed[-1].at_once
    assert client not in trio.cores["a"].peers


# ── who leads ────────────────────────────────────────────────────────────────────────────


def test_a_primary_goes_on_alone_by_a_grant(trio: Trio) -> None:
    client = trio.client("p")
    trio.part("b", "a")
    assert trio.seat("a").standby == 0
    assert trio.seat("a").term == 3
    assert trio.request(client, 1)


def test_without_the_witness_it_waits_and_sends_its_clients_away(trio: Trio) -> None:
    client = trio.client("p")
    trio.part("a", "w")
    trio.part("b", "w")
    trio.part("b", "a")
    assert not trio.request(client, 1)
    trio.beat(10, only="a")
    close = trio.closed[-1]
    assert (close.connection, close.error, close.at_once) == (client, "NoClientsHere", True)
    assert trio.cores["a"].status()["pair"]["stalled"]
    trio.client("q")
    assert "waits for its standby" in trio.closed[-1].text
    trio.connect("b", "a")
    trio.beat(2)
    assert trio.request(trio.client("p"), 1)


def test_a_standby_leads_by_a_grant_and_the_old_primary_follows_it(trio: Trio) -> None:
    client = trio.client("p")
    trio.request(client, 1)
    trio.part("a", "w")
    trio.part("b", "a")
    assert not trio.request(client, 2)
    trio.beat(1, only="b")
    assert trio.seat("b").leads
    assert trio.seat("b").term == 3
    # The old one still believes to lead. Its clients are sent away before anything is released.
    trio.connect("a", "w")
    assert not trio.seat("a").leads
    gone = [close for close in trio.closed if close.connection == client]
    assert [(close.error, close.at_once) for close in gone] == [("NoClientsHere", True)]
    trio.connect("a", "b")
    trio.beat(2)
    assert trio.seat("b").standby == 1
    assert trio.cores["a"].durable.site_digest() == trio.cores["b"].durable.site_digest()
    assert trio.cores["b"].site.instances["p"].taken == 1  # request 2 was told to nobody


def test_an_old_primary_learns_it_from_its_successor(trio: Trio) -> None:
    trio.part("a", "w")
    trio.part("b", "a")
    trio.beat(1, only="b")
    trio.connect("b", "a")
    assert not trio.seat("a").leads
    trio.beat(2)
    assert trio.seat("b").standby == 1


def test_a_standby_that_was_not_in_step_does_not_lead() -> None:
    trio = Trio()
    trio.connect("a", "w")
    trio.connect("b", "w")
    trio.held.add(("b", "a"))
    trio.connect("b", "a")  # nothing of it arrives
    trio.part("b", "a")
    trio.part("a", "w")
    trio.beat(5, only="b")
    assert not trio.seat("b").leads


@pytest.mark.parametrize("term", [0, 1])
def test_an_answer_of_an_earlier_term_changes_nothing(trio: Trio, term: int) -> None:
    seat = trio.seat("a")
    trio.tell("a", witness_of(trio, "a"), told(term, 2))
    trio.tell("a", witness_of(trio, "a"), told(term, 1))
    assert trio.seat("a") == seat


def test_an_answer_of_this_term_is_no_grant_to_go_on_alone(trio: Trio) -> None:
    trio.tell("a", witness_of(trio, "a"), told(2, 1, standby=0))
    assert trio.seat("a").standby == 2


def test_a_witness_that_has_lost_its_registers_grants_nothing(trio: Trio) -> None:
    trio.tell("b", witness_of(trio, "b"), told(9, 2, witness=78))
    assert not trio.seat("b").leads
    assert "lost its register" in trio.cores["b"].status()["pair"]["problem"]


def test_a_restarted_replica_goes_on_as_its_journal_says(trio: Trio) -> None:
    core = trio.cores["a"]
    again = SiteCore(core.config, core.durable)
    again.recover(trio.now)
    assert again.pair.serves
    assert again.withheld() > 0  # until its standby has all of this life, or it may go on alone


def test_a_clock_that_is_behind_stops_nobody_from_leading() -> None:
    trio = Trio(ahead_s=1000.0)
    trio.meet()
    trio.request(trio.client("p"), 1)
    trio.part("a", "w")
    trio.part("b", "a")
    trio.beat(1, only="b")
    client = trio.client("p", at="b")
    assert trio.request(client, 2, at="b")
    core = trio.cores["b"]
    assert core.durable.now > 1000.0
    due = trio.timers["b", ("sweep",)]
    assert due < 10.0  # on its own clock
    again = SiteCore(core.config, core.durable)
    again.recover(trio.now)
    again.step(Received(1, OrderHello(PROTOCOL_VERSION, "q")), trio.now)
    again.step(Received(1, NumberRequest(1, (0,))), trio.now)
    assert again.durable.now > 1000.0


def test_a_folder_that_is_lost_leads_back_to_the_other_replica() -> None:
    """The register names the address of the lost one as primary: that is our own."""
    trio = Trio()
    trio.meet()
    fresh = SiteCore(replace(trio.cores["a"].config, incarnation=9))
    fresh.recover(trio.now)
    out = fresh.step(Dialled(1, "@witness"), trio.now)
    out = fresh.step(Received(1, told(5, 1)), trio.now)
    assert not fresh.durable.seat.leads
    assert fresh.durable.seat.other in ("", "b")
    assert (out.dial or {"@pair": "b"})["@pair"] == "b"


# ── what peers claim ─────────────────────────────────────────────────────────────────────


def hello(**changes: Any) -> PairHello:
    first = PairHello(PROTOCOL_VERSION, "S1", SiteConfig("S1").identity, 9, 0, 0, False, "c")
    return replace(first, **changes)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"version": 1}, "version 1"),
        ({"site": "S2"}, "founded as part of"),
        ({"identity": "pairs"}, "founded as part of"),
        ({"replica": 1}, "met itself"),
        ({"founding": 5}, "founded twice"),
        ({"term": -1}, "no term -1"),
        ({"term": LAST_NUMBER + 1}, "no term"),
        ({"number": -1}, "cannot have -1 facts"),
        ({"address": "x" * 600}, "too long"),
    ],
)
def test_a_hello_that_makes_no_sense_is_refused(
    trio: Trio, wrong: dict[str, Any], text: str
) -> None:
    seat = trio.seat("a")
    trio.tell("a", trio.number(), hello(**wrong))
    assert text in trio.closed[-1].text
    assert trio.seat("a") == seat


@pytest.mark.parametrize(
    ("at", "frame", "text"),
    [
        ("a", SiteFactsAck(10_000), "not there yet"),
        ("b", SiteFacts(10_000, ()), "comes after fact"),
        ("b", SiteFacts(1, (b"nonsense",) * 50), "makes no sense"),
        ("b", SiteImagePart(1.0, 1, 2, 3, b""), "comes after part 0"),
        ("b", SiteImagePart(1.0, 1, 1, 3, b"nonsense"), "makes no sense"),
    ],
)
def test_a_frame_that_makes_no_sense_ends_the_connection(
    trio: Trio, at: str, frame: Any, text: str
) -> None:
    trio.tell(at, pair_of(trio, at), frame)
    assert any(text in close.text for close in trio.closed), trio.closed


@pytest.mark.parametrize("fact", [Fact(math.inf, TopicsNamed(("x",))), Fact(math.nan, Seat(9))])
def test_a_fact_that_was_refused_comes_again(trio: Trio, fact: Fact) -> None:
    """A standby does not count it as taken."""
    before, pair = trio.cores["b"].durable.digest(), trio.cores["b"].pair
    applied = pair.applied
    trio.tell("b", pair_of(trio, "b"), SiteFacts(applied + 1, (records.encode(fact),)))
    assert any("is not for a standby" in close.text for close in trio.closed), trio.closed
    assert (pair.applied, trio.cores["b"].durable.digest()) == (applied, before)


def test_frames_of_a_pair_are_not_taken_from_others(trio: Trio) -> None:
    client = trio.client("p")
    trio.tell("a", client, SiteFactsAck(1))
    assert "SiteFactsAck from sequenced" in trio.closed[-1].text


@pytest.mark.parametrize("name", [PAIR, WITNESS])
def test_nobody_else_has_the_names_of_mates(trio: Trio, name: str) -> None:
    """Frames to mates leave before the standby has their facts."""
    trio.client(name)
    assert trio.closed[-1].text == f"no client is named {name}"
    trio.client(name)
    with pytest.raises(MisuseError, match=f"no site is named {name}"):
        SiteConfig("S1", line=("S1", name)).check()


def test_a_client_that_knows_more_is_sent_to_the_other_replica(trio: Trio) -> None:
    client = trio.client("p")
    trio.request(client, 1)
    trio.tell("a", client, Confirm(5))
    close = trio.closed[-1]
    assert (close.error, close.at_once) == ("NoClientsHere", True)


def test_a_refutation_waits_for_the_standby(trio: Trio) -> None:
    """Another replica may lead, and have given the number."""
    client = trio.client("p")
    trio.request(client, 1)
    trio.held.add(("b", "a"))
    before = len(trio.said)
    trio.tell("a", client, AskNumbers(0, (5,)))
    assert trio.said[before:] == []
    trio.release()
    assert trio.said[before:] == [Told(0, ((5, UNGIVEN, None),))]


# ── operators ────────────────────────────────────────────────────────────────────────────


def test_an_operator_promotes_a_standby_that_was_in_step() -> None:
    trio = Trio(witnessed=False)
    trio.meet()
    assert "leads S1 already" in promoted(trio, "a").text
    assert "answers; stop it first" in promoted(trio, "b").text
    trio.part("b", "a")
    assert not promoted(trio, "b").error
    assert trio.seat("b").leads
    trio.connect("b", "a")
    assert not trio.seat("a").leads


def test_an_operator_is_warned_before_a_primary_goes_on_alone() -> None:
    trio = Trio(witnessed=False)
    trio.meet()
    trio.part("b", "a")
    assert "may be promoted instead" in promoted(trio, "a").text
    assert not promoted(trio, "a", risk=True).error
    assert trio.cores["a"].withheld() == 0


def test_a_standby_without_state_is_promoted_at_a_risk_only() -> None:
    trio = Trio(witnessed=False)
    assert "has no state" in promoted(trio, "b").text
    assert not promoted(trio, "b", risk=True).error
    assert trio.seat("b").leads


def test_where_there_is_a_witness_it_decides(trio: Trio) -> None:
    trio.part("b", "a")
    trio.part("b", "w")
    assert "has a witness" in promoted(trio, "b").text
    assert promoted(trio, "b").error == "NotSafe"


def test_a_forced_promotion_is_repeated_when_the_witness_is_back(trio: Trio) -> None:
    trio.part("b", "w")
    trio.part("a", "w")
    trio.part("b", "a")
    assert not promoted(trio, "b", risk=True).error
    assert trio.seat("b").leads
    trio.connect("b", "w")
    assert "the witness does not know" in trio.cores["b"].status()["pair"]["problem"]
    assert not promoted(trio, "b").error
    trio.beat(1)
    assert trio.cores["w"].durable.registers["S1"].primary == 2
    assert not trio.cores["b"].status()["pair"]["problem"]
    trio.connect("a", "w")
    assert not trio.seat("a").leads


def test_the_word_of_a_witness_counts_more_than_a_forced_promotion(trio: Trio) -> None:
    trio.part("b", "w")
    trio.part("b", "a")  # the primary goes on alone
    assert not promoted(trio, "b", risk=True).error
    trio.connect("b", "w")
    assert not trio.seat("b").leads


def test_an_operator_tells_a_witness_without_registers_who_leads(trio: Trio) -> None:
    trio.part("a", "w")
    trio.part("b", "w")
    trio.cores["w"] = type(trio.cores["w"])(replace(trio.cores["w"].config, incarnation=78))
    trio.connect("a", "w")
    assert "lost its register" in trio.cores["a"].status()["pair"]["problem"]
    assert not promoted(trio, "a").error
    trio.beat(3)
    register = trio.cores["w"].durable.registers["S1"]
    assert (register.primary, register.standby) == (1, 2)
    trio.connect("b", "w")
    assert trio.seat("b").witness == 78


def test_an_operator_tells_it_under_load(trio: Trio) -> None:
    trio.held.add(("b", "a"))  # an acknowledgement is on its way
    trio.request(trio.client("p"), 1)
    assert trio.cores["a"].withheld()
    trio.tell("a", witness_of(trio, "a"), told(0, 0, witness=78))
    assert "lost its register" in trio.cores["a"].pair.problem
    assert not promoted(trio, "a").error


def test_a_configuration_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(MisuseError, match="address of its primary"):
        SiteConfig("S1", second=True).check()
    with pytest.raises(MisuseError, match="more than 0"):
        SiteConfig("S1", patience_s=0.0).check()
