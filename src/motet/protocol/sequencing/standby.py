"""Frames between the two processes of a site, and between them and their witness.

    replica ── PairHello ──▶ replica       who it is, what it has, whether it leads; both send it
    primary ── SiteImagePart ──▶ standby   all durable state as of one fact
    primary ── SiteFacts ──▶ standby       facts in order; without any, a sign of life
    standby ── SiteFactsAck ──▶ primary    facts up to this one are on its disk
    primary ── InStep ──▶ standby          from now on nothing leaves before it has it

    replica ── WitnessHello ──▶ witness    answered, as all that follows, by RegisterTold
    replica ── RegisterQuery ──▶ witness
    replica ── RegisterClaim ──▶ witness   change the register, if its term is still this one

    operator ── PromoteRequest ──▶ replica     answered by PromoteAnswer

The register of a site names its primary and, if one is in step, its standby. Each change of it
begins a new term. Replicas are named by numbers that their folders keep.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from motet.protocol.traits import OPERATOR, SMALL_BYTES, STRANGER, frame

PAIR: Final = "@pair"
WITNESS: Final = "@witness"
"""Peers that are not sites: the other process of a site, and its witness."""
REPLICA: Final = "replica"
"""The kind of peer that a witness has."""
MAX_ADDRESS_CHARS: Final = 512
MAX_IDENTITY_CHARS: Final = 64 * 1024
MOST_TERMS_AHEAD: Final = 1_000_000
"""A claim is at most so far ahead of its register: then nobody uses terms up."""


@frame(
    senders=(*STRANGER, "pair"),
    hello=lambda _: ("broker", PAIR),
    versioned=True,
    most_bytes=SMALL_BYTES * 2,
)
class PairHello(Struct, tag="pair", array_like=True, frozen=True):
    """`founding` is 0 while the replica has no state. `life` and `number`: up to this fact it has
    the state of the primary with that life. `heard` is true in a reply."""

    version: int
    site: str
    identity: str
    replica: int
    founding: int
    term: int
    leads: bool
    address: str
    life: float = -1.0
    number: int = 0
    heard: bool = False


@frame(senders=("pair",))
class SiteImagePart(Struct, tag="site-image", array_like=True, frozen=True):
    """Part `at` of `count` of the state after fact `number` of the primary's life."""

    life: float
    number: int
    at: int
    count: int
    payload: bytes


@frame(senders=("pair",))
class SiteFacts(Struct, tag="site-facts", array_like=True, frozen=True):
    """Facts numbered from `first`; an empty one concerns the primary alone. `received`: of the
    messages to each other site, those that have arrived there."""

    first: int
    payloads: tuple[bytes, ...]
    received: dict[str, int] = {}


@frame(senders=("pair",), most_bytes=SMALL_BYTES)
class SiteFactsAck(Struct, tag="site-facts-ack", array_like=True, frozen=True):
    upto: int


@frame(senders=("pair",), most_bytes=SMALL_BYTES)
class InStep(Struct, tag="in-step", array_like=True, frozen=True):
    term: int
    witness: int = 0


@frame(
    senders=STRANGER,
    hello=lambda hello: ("broker", hello.site),
    versioned=True,
    most_bytes=SMALL_BYTES * 2,
)
class WitnessHello(Struct, tag="witness", array_like=True, frozen=True):
    version: int
    site: str
    identity: str
    replica: int
    address: str


@frame(senders=(REPLICA,), most_bytes=SMALL_BYTES)
class RegisterQuery(Struct, tag="register?", array_like=True, frozen=True):
    """Answered by `RegisterTold`."""


@frame(senders=(REPLICA,), most_bytes=SMALL_BYTES)
class RegisterClaim(Struct, tag="register", array_like=True, frozen=True):
    """Its sender leads from now on, with this standby in step, or alone if it is 0. `forced`: an
    operator says so, whatever the register has."""

    term: int
    standby: int = 0
    forced: bool = False


@frame(senders=("witness",), hello=lambda _: ("broker", WITNESS), most_bytes=SMALL_BYTES)
class RegisterTold(Struct, tag="register=", array_like=True, frozen=True):
    """Term 0: nobody has ever led. `witness` differs if the witness has lost its registers."""

    witness: int
    term: int
    primary: int
    standby: int
    address: str
    """Where the primary is."""


@frame(senders=OPERATOR, most_bytes=SMALL_BYTES)
class PromoteRequest(Struct, tag="promote", array_like=True, frozen=True):
    """Lead, alone. `risk`: even if another one may lead as well, or has numbers that this one does
    not have."""

    risk: bool = False


@frame(soft=True, most_bytes=SMALL_BYTES)
class PromoteAnswer(Struct, tag="promote=", array_like=True, frozen=True):
    error: str = ""
    text: str = ""


StandbyFrame = (
    PairHello
    | SiteImagePart
    | SiteFacts
    | SiteFactsAck
    | InStep
    | WitnessHello
    | RegisterQuery
    | RegisterClaim
    | RegisterTold
    | PromoteRequest
    | PromoteAnswer
)
