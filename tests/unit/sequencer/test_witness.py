"""The register of a site: who may change it, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from motet.broker.folder.recovery import open_machine, take_snapshot
from motet.protocol.contract import Received
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.sequencing.messages import LAST_NUMBER, HowFar
from motet.protocol.sequencing.standby import (
    MOST_TERMS_AHEAD,
    RegisterClaim,
    RegisterQuery,
    RegisterTold,
    WitnessHello,
)
from motet.sequencer.witness import WITNESS_MACHINE, WitnessConfig, WitnessCore

ONE, OTHER, THIRD = 11, 12, 13


class Register:
    """Three replicas that claim the register of one site."""

    def __init__(self) -> None:
        self.core = WitnessCore(WitnessConfig(incarnation=77))
        for replica in (ONE, OTHER, THIRD):
            self.say(replica, hello(replica))

    def say(self, connection: int, frame: Any) -> Any:
        out = self.core.step(Received(connection, frame), 1.0)
        self.core.validate()
        return out.send[-1][1] if out.send else out.close[-1] if out.close else None

    def claim(self, replica: int, term: int, standby: int = 0, *, forced: bool = False) -> Any:
        told = self.say(replica, RegisterClaim(term, standby, forced))
        assert isinstance(told, RegisterTold)
        return (told.term, told.primary, told.standby)


def hello(replica: int, **changes: Any) -> WitnessHello:
    given = WitnessHello(PROTOCOL_VERSION, "S1", "causal|S1", replica, f"at {replica}")
    return structs.replace(given, **changes)


@pytest.fixture
def register() -> Register:
    made = Register()
    assert made.claim(ONE, 0) == (1, ONE, 0)
    return made


@pytest.mark.parametrize("term", [MOST_TERMS_AHEAD + 1, LAST_NUMBER])
def test_no_claim_uses_up_the_terms(register: Register, term: int) -> None:
    close = register.say(OTHER, RegisterClaim(term, 0, forced=True))
    assert "makes no sense" in close.text
    assert register.claim(ONE, 1) == (2, ONE, 0)


def test_whoever_comes_first_leads(register: Register) -> None:
    assert register.claim(OTHER, 0) == (1, ONE, 0)
    told = register.say(THIRD, RegisterQuery())
    assert told == RegisterTold(77, 1, ONE, 0, f"at {ONE}")


def test_a_primary_names_its_standby_which_then_may_lead(register: Register) -> None:
    assert register.claim(ONE, 1, OTHER) == (2, ONE, OTHER)
    assert register.claim(OTHER, 2) == (3, OTHER, 0)


def test_of_two_claims_in_one_term_the_first_one_is_granted(register: Register) -> None:
    register.claim(ONE, 1, OTHER)
    assert register.claim(ONE, 2) == (3, ONE, 0)  # it goes on alone
    assert register.claim(OTHER, 2) == (3, ONE, 0)
    assert register.claim(OTHER, 3) == (3, ONE, 0)  # it is not in step any more


def test_a_deposed_primary_is_refused(register: Register) -> None:
    register.claim(ONE, 1, OTHER)
    register.claim(OTHER, 2)
    assert register.claim(ONE, 2) == (3, OTHER, 0)
    assert register.claim(ONE, 3) == (3, OTHER, 0)
    assert register.claim(ONE, 3, OTHER) == (3, OTHER, 0)


def test_a_standby_leads_alone_and_others_do_not_lead(register: Register) -> None:
    register.claim(ONE, 1, OTHER)
    assert register.claim(OTHER, 2, THIRD) == (2, ONE, OTHER)
    assert register.claim(THIRD, 2) == (2, ONE, OTHER)


def test_an_operator_forces_a_new_term(register: Register) -> None:
    register.claim(ONE, 1, OTHER)
    assert register.claim(THIRD, 9, forced=True) == (10, THIRD, 0)
    assert register.claim(ONE, 1, forced=True) == (11, ONE, 0)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (hello(14, version=1), "version 1"),
        (hello(14, site=""), "has a name"),
        (hello(14, site="S1\n"), "has a name"),
        (hello(14, identity="pairs|S1"), "another S1"),
        (hello(14, identity="x" * 70_000), "too long"),
        (hello(0), "no replica 0"),
        (RegisterClaim(1), "from nobody"),
        (HowFar((1,)), "does not take HowFar"),
    ],
)
def test_a_stranger_that_makes_no_sense_is_refused(
    register: Register, frame: Any, text: str
) -> None:
    close = register.say(14, frame)
    assert text in close.text
    assert register.claim(ONE, 1) == (2, ONE, 0)


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (RegisterClaim(-1), "makes no sense"),
        (RegisterClaim(2**63 - 1), "makes no sense"),
        (RegisterClaim(1, -1), "makes no sense"),
        (RegisterClaim(1, ONE), "its own standby"),
    ],
)
def test_a_claim_that_makes_no_sense_is_refused(
    register: Register, claim: RegisterClaim, text: str
) -> None:
    assert text in register.say(ONE, claim).text


def test_registers_outlive_the_process(tmp_path: Path) -> None:
    core, journal, _ = open_machine(WITNESS_MACHINE, WitnessConfig(), tmp_path)
    core.step(Received(1, hello(ONE)), 1.0)
    for term in range(3):
        journal.append(core.step(Received(1, RegisterClaim(term, OTHER)), 2.0).persist)
    journal.log.sync()
    before = core.durable
    journal.log.shut()
    take_snapshot(tmp_path, 2, {}, WITNESS_MACHINE)
    again, journal, replayed = open_machine(WITNESS_MACHINE, WitnessConfig(), tmp_path)
    journal.log.shut()
    assert again.durable.registers == before.registers
    assert again.durable.digest() == before.digest()
    assert again.config.incarnation == before.config.incarnation
    assert replayed == 2
    assert again.status()["registers"]["S1"]["term"] == 3
