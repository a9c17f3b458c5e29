"""The witness: a small machine that keeps one register for each site, and changes it if its term is
still the one that the claimant knows.

Only the primary of a register, or its standby if one is in step, may change it: the primary to any
standby or none, the standby to itself alone. So a standby leads only if the last primary has waited
for it, and a primary goes on alone only as long as no standby has led.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Union

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from motet.errors import (
    InvariantError,
    MisuseError,
    PeerError,
    ProtocolError,
    VersionError,
    WrittenByAnotherVersion,
)
from motet.protocol.contract import Close, Closed, Fact, Input, Output, Received, Remembered
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.machine import Ledger
from motet.protocol.machine import Machine
from motet.protocol.room import LISTED, Objection, Peer
from motet.protocol.sequencing.messages import LAST_NUMBER
from motet.protocol.sequencing.standby import (
    MAX_ADDRESS_CHARS,
    MAX_IDENTITY_CHARS,
    MOST_TERMS_AHEAD,
    REPLICA,
    RegisterClaim,
    RegisterQuery,
    RegisterTold,
    WitnessHello,
)
from motet.protocol.traits import TRAITS

MOST_REGISTERS: Final = 10_000
MAX_SITE_CHARS: Final = 128
WITNESS_VERSION: Final = 1


class WitnessConfig(Struct, frozen=True):
    name: str = "witness"
    incarnation: int = 1
    heartbeat_s: float = 2.0

    @property
    def mates(self) -> tuple[str, ...]:
        return ()


class WitnessFounded(Struct, array_like=True, frozen=True):
    name: str
    incarnation: int


class SiteRegister(Struct, tag="register", array_like=True, frozen=True):
    """A fact, and a part of the image: the register of a site from now on."""

    site: str
    identity: str
    term: int = 0
    primary: int = 0
    standby: int = 0
    address: str = ""


class DurableWitness:
    def __init__(self, config: WitnessConfig) -> None:
        self.config = config
        self.now = 0.0
        self.registers: dict[str, SiteRegister] = {}
        self.ledgers: Mapping[str, Ledger] = {}

    def apply(self, fact: Fact) -> None:
        self.now = max(self.now, fact.now)
        register = fact.body
        assert isinstance(register, SiteRegister)
        self.registers[register.site] = register

    def replay(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            self.apply(fact)

    def parts(self) -> Iterator[Struct]:
        yield from self.registers.values()

    def restore(self, parts: Iterable[Any]) -> None:
        for part in parts:
            self.registers[part.site] = part

    def digest(self) -> str:
        return hashlib.sha256(_encode(sorted(self.registers.items()))).hexdigest()

    def validate(self) -> None:
        for register in self.registers.values():
            if register.term < 1 or not register.primary or register.primary == register.standby:
                raise InvariantError(f"the register of {register.site} makes no sense: {register}")


class WitnessCore:
    def __init__(self, config: WitnessConfig, durable: DurableWitness | None = None) -> None:
        self.config = config
        self.durable = durable or DurableWitness(config)
        self.peers: dict[int, Peer] = {}
        self._hellos: dict[int, WitnessHello] = {}
        self._counts = {"steps": 0, "granted": 0, "refused": 0}
        self._frames: dict[type, Callable[[int, Any, Output, float], None]] = {
            WitnessHello: self._hello,
            RegisterQuery: self._query,
            RegisterClaim: self._claim,
        }

    def step(self, given: Input, now: float) -> Output:
        out = Output()
        self._counts["steps"] += 1
        if type(given) is Received:
            try:
                self._received(given.connection, given.frame, out, now)
            except PeerError as error:
                out.close.append(Close(given.connection, type(error).__name__, str(error)))
                self._closed(given.connection)
        elif type(given) is Closed:
            self._closed(given.connection)
        return out

    def recover(self, now: float, remembered: Remembered | None = None) -> Output:
        del now, remembered
        return Output()

    def _closed(self, connection: int) -> None:
        self.peers.pop(connection, None)
        self._hellos.pop(connection, None)

    def _received(self, connection: int, frame: Frame, out: Output, now: float) -> None:
        handle = self._frames.get(type(frame))
        if handle is None:
            raise ProtocolError(
                f"a witness does not take {type(frame).__name__}; give the address of a site"
            )
        peer = self.peers.get(connection)
        found = "nobody" if peer is None else peer.kind
        if found not in TRAITS[type(frame)].senders:
            raise ProtocolError(f"{type(frame).__name__} from {found} on this connection")
        handle(connection, frame, out, now)

    def _hello(self, connection: int, hello: WitnessHello, out: Output, now: float) -> None:
        del out, now
        if hello.version != PROTOCOL_VERSION:
            raise VersionError(
                f"{hello.site} speaks version {hello.version}, we speak {PROTOCOL_VERSION}"
            )
        if not 0 < len(hello.site) <= MAX_SITE_CHARS or not hello.site.isprintable():
            raise ProtocolError("a site has a name of 1 to 128 printable characters")
        if len(hello.identity) > MAX_IDENTITY_CHARS or len(hello.address) > MAX_ADDRESS_CHARS:
            raise ProtocolError(f"what {hello.site} says of itself is too long")
        if not 0 < hello.replica <= LAST_NUMBER:
            raise ProtocolError(f"there is no replica {hello.replica}")
        register = self._register(hello)
        if register.identity != hello.identity:
            raise ProtocolError(
                f"another {hello.site} has its register here, founded as part of "
                f"{register.identity!r}; give the site another name, or use another witness"
            )
        self._hellos[connection] = hello
        self.peers[connection] = Peer(REPLICA, hello.site)

    def _register(self, hello: WitnessHello) -> SiteRegister:
        found = self.durable.registers.get(hello.site)
        return found or SiteRegister(hello.site, hello.identity)

    def _query(self, connection: int, query: RegisterQuery, out: Output, now: float) -> None:
        del query, now
        self._tell(connection, out)

    def _tell(self, connection: int, out: Output) -> None:
        register = self._register(self._hellos[connection])
        told = RegisterTold(
            self.config.incarnation,
            register.term,
            register.primary,
            register.standby,
            register.address,
        )
        out.send.append((connection, told))

    def _claim(self, connection: int, claim: RegisterClaim, out: Output, now: float) -> None:
        hello = self._hellos[connection]
        register = self._register(hello)
        most = register.term + MOST_TERMS_AHEAD
        if not 0 <= claim.term < most or not 0 <= claim.standby <= LAST_NUMBER:
            raise ProtocolError(f"a claim for term {claim.term} makes no sense")
        if claim.standby == hello.replica:
            raise ProtocolError(f"replica {hello.replica} cannot be its own standby")
        if not self.may_change(register, hello.replica, claim):
            self._counts["refused"] += 1
        elif not register.term and len(self.durable.registers) >= MOST_REGISTERS:
            raise ProtocolError(f"a witness has registers for at most {MOST_REGISTERS} sites")
        else:
            self._counts["granted"] += 1
            new = replace(
                register,
                term=1 + max(register.term, claim.term),
                primary=hello.replica,
                standby=claim.standby,
                address=hello.address,
            )
            fact = Fact(now, new)
            out.persist.append(fact)
            self.durable.apply(fact)
        self._tell(connection, out)

    def may_change(self, register: SiteRegister, replica: int, claim: RegisterClaim) -> bool:
        if claim.forced or not register.term:
            return True
        if claim.term != register.term:
            return False
        return replica == register.primary or (replica == register.standby and not claim.standby)

    # ── looking in ───────────────────────────────────────────────────────────────────────

    def listens_at(self, address: str) -> None:
        """Nobody is told."""

    def done_with(self) -> int:
        return 0

    def withheld(self) -> int:
        return 0

    def outlives(self, error: str) -> bool:
        del error
        return True

    def acknowledged(self) -> dict[str, int]:
        return {}

    def objection_to(self, neighbours: tuple[str, ...]) -> Objection | None:
        del neighbours
        return Objection("MisuseError", "a witness has no neighbours")

    def status(self, clients: tuple[str, ...] = ()) -> dict[str, Any]:
        del clients
        registers = list(self.durable.registers.values())[:LISTED]
        return {
            "witness": self.config.incarnation,
            **self._counts,
            "replicas": len(self._hellos),
            "registers": {
                each.site: {
                    "term": each.term,
                    "primary": each.primary,
                    "standby": each.standby,
                    "address": each.address,
                }
                for each in registers
            },
        }

    def validate(self) -> None:
        self.durable.validate()


# ── its folder ───────────────────────────────────────────────────────────────────────────

_encode = msgspec.msgpack.Encoder().encode
_facts: msgspec.msgpack.Decoder[tuple[float, SiteRegister]] = msgspec.msgpack.Decoder(
    tuple[float, SiteRegister]
)
_founded = msgspec.msgpack.Decoder(WitnessFounded)
_parts = msgspec.msgpack.Decoder(Union[SiteRegister])  # noqa: UP007


class WitnessMachine(Machine[WitnessConfig, DurableWitness, WitnessCore]):
    what = "witness"
    where = "motet.sequencer.witness:WITNESS_MACHINE"
    journal = "witness-journal"
    snapshot = "witness-snapshot"
    without_folder = (
        "start it without: then an operator says of each site that has no standby in step which "
        "process leads, with `motet sequencer promote`"
    )

    @property
    def version(self) -> int:
        return WITNESS_VERSION

    def founding(self, settings: WitnessConfig) -> bytes:
        return _encode(WitnessFounded(settings.name, settings.incarnation))

    def born(self, settings: WitnessConfig | None, founding: bytes) -> DurableWitness:
        founded = _founded.decode(founding)
        if settings is not None and founded.name != settings.name:
            raise MisuseError(f"this is the journal of {founded.name}, not of {settings.name}")
        settings = settings or WitnessConfig(founded.name)
        return DurableWitness(replace(settings, incarnation=founded.incarnation))

    def identity(self, state: DurableWitness) -> bytes:
        return self.founding(state.config)

    def parts(self, state: DurableWitness) -> Iterator[Struct]:
        return state.parts()

    def encode(self, record: Any) -> bytes:
        return _encode(record)

    def decode_fact(self, payload: bytes) -> Fact:
        return Fact(*_facts.decode(payload))

    def decode_parts(self, version: int, payloads: Iterable[bytes]) -> Iterator[Struct]:
        if version != WITNESS_VERSION:
            raise WrittenByAnotherVersion(f"the snapshot is of version {version}")
        yield from map(_parts.decode, payloads)

    def new(self, settings: WitnessConfig) -> WitnessCore:
        return WitnessCore(settings)

    def core_of(self, state: DurableWitness) -> WitnessCore:
        return WitnessCore(state.config, state)

    def continues(
        self, state: DurableWitness, settings: WitnessConfig
    ) -> tuple[WitnessCore, list[Fact]]:
        del settings
        return self.core_of(state), []

    def summary(self, state: DurableWitness, facts: int) -> dict[str, Any]:
        return {
            "name": state.config.name,
            "incarnation": state.config.incarnation,
            "facts": facts,
            "sites": len(state.registers),
            "digest": state.digest(),
        }


WITNESS_MACHINE: Final = WitnessMachine()
