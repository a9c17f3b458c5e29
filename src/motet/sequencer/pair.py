"""One of the two replicas of a site: who leads, what the standby has, what the witness has granted.

The primary sends each fact to its standby while it writes it to its own disk. Nothing that rests on
a fact leaves before both have it, from the moment when the primary notes that the standby is in
step. It may stop waiting only when the witness has granted that it goes on alone, and the standby
leads only when the witness has granted that: both are one change of one register. So of two that
would lead, one has no standby that acknowledges, and no grant: it can release nothing.

Without a witness an operator grants.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import DecodeError, Struct
from msgspec.structs import replace

from motet.errors import ProtocolError, VersionError
from motet.protocol.contract import Close, Fact, Output, SetTimer
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.room import Peer
from motet.protocol.sequencing.messages import LAST_NUMBER
from motet.protocol.sequencing.standby import (
    MAX_ADDRESS_CHARS,
    PAIR,
    WITNESS,
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
from motet.sequencer import records
from motet.sequencer.seat import OWN_FACTS, ImagePartTaken, Seat

if TYPE_CHECKING:
    from motet.sequencer.core import SiteCore
    from motet.sequencer.durable import DurableSite

BEATS: Final = 4
"""Signs of life within the patience."""
IMAGE_PATIENCE: Final = 15
"""Times the patience, while an image is on its way."""
GRACE: Final = 0.125
"""Of the patience: after it has lost its primary, a standby waits for it so long."""
STALLED: Final = 2.0
"""Times the patience: then a primary that may release nothing sends its clients elsewhere."""
KEPT_BYTES: Final = 32 * 1024 * 1024
"""Of facts that are kept for a standby that is away; beyond it takes an image."""
FRAME_BYTES: Final = 256 * 1024
EVERYTHING: Final = 2**62
NEVER: Final = -1.0
"""The life of no primary."""
TICK: Final = ("pair",)


class Fed(Struct):
    """The other replica, which follows us."""

    connection: int
    replica: int
    acked: int = -1
    """It has all facts of our life up to this one on its disk."""
    floor: int = 0
    """Up to this fact we did not wait for it."""
    counts: bool = False
    heard: float = 0.0

    @property
    def has_all(self) -> bool:
        """Nothing has left that it does not have, and nothing will."""
        return self.counts and self.acked >= self.floor


class Pair:
    """The soft half; `Seat` is the durable one."""

    def __init__(self, core: SiteCore) -> None:
        self._core = core
        self.life = 0.0
        """When this process began: facts are counted since then."""
        self.count = 0
        self.other = core.config.other
        self.connection = 0
        """To the other replica."""
        self.fed: Fed | None = None
        self.had = -1
        """As primary: the standby of the seat has the facts of this life up to this one."""
        self.followed: PairHello | None = None
        """As standby: the primary that sends us its facts."""
        self.fed_life = NEVER
        self.applied = 0
        """As standby: up to this fact we have the state of the primary with that life."""
        self.parts = 0
        """Of an image that is coming."""
        self.heard = 0.0
        """Of the primary; or since when it is lost."""
        self.lost = True
        self.witness = 0
        """The connection to it."""
        self.told: RegisterTold | None = None
        """Its last answer on this connection."""
        self.stalled = False
        self.problem = ""
        """What keeps this replica from its work, for operators."""
        self.notice: Callable[..., None] = lambda *_: None
        """Tells operators of changes."""
        self._released = 0.0
        """When the primary was last free to release something."""
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._ticks = False
        self._aims: Mapping[str, str] | None = None
        self._mine = False
        """We have dialled the other replica."""

    # ── what the core asks ───────────────────────────────────────────────────────────────

    @property
    def _seat(self) -> Seat:
        return self._core.durable.seat

    @property
    def serves(self) -> bool:
        return self._seat.leads and not self.stalled

    @property
    def is_alone(self) -> bool:
        """There is neither a witness nor another replica, as far as is known."""
        return not (self._core.config.witness or self.other or self._seat.standby or self.fed)

    def withheld(self) -> int:
        """How many of the last facts the standby does not have."""
        if self._seat.standby:
            return self.count - self.had if self.had >= 0 else EVERYTHING
        fed = self.fed
        if fed is not None and fed.counts:
            return self.count - max(fed.acked, fed.floor)
        return 0

    def refusal(self) -> str:
        name, seat = self._core.config.name, self._seat
        if seat.leads:
            return f"this process of {name} waits for its standby or its witness{self._elsewhere}"
        return f"this process of {name} is not primary{self._elsewhere}"

    @property
    def _elsewhere(self) -> str:
        return f"; try {self.other}" if self.other else ""

    def recover(self, out: Output, now: float) -> None:
        self.life = self._released = now
        self.heard = now + self._patience_s  # time to find the primary
        self.other = self._seat.other or self.other
        if not self.is_alone:
            self._set_tick(out, now)
        self.aim(out)

    # ── the end of a step ────────────────────────────────────────────────────────────────

    def after(self, out: Output, now: float) -> None:
        """Send the facts of a step to the standby."""
        first = self.count + 1
        self.count += len(out.persist)
        if self.fed is None and not self._seat.standby:
            if self._kept:
                self._forget_kept()
            return
        payloads = tuple(
            b"" if type(fact.body) in OWN_FACTS else records.encode(fact) for fact in out.persist
        )
        self._kept.extend(payloads)
        self._kept_bytes += sum(map(len, payloads))
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft())
        if self.fed is not None:
            out.feed.append((self.fed.connection, SiteFacts(first, payloads)))
        del now

    def aim(self, out: Output) -> None:
        """Dial whom we need. Of two connections to the other replica, the newer one remains."""
        config, dials = self._core.config, {}
        if self.serves:
            dials.update(config.dials)
        if config.witness:
            dials[WITNESS] = config.witness
        if self.other and (self._mine or not self.connection):
            dials[PAIR] = self.other
        if dials != self._aims:
            self._aims = out.dial = dials

    # ── ticks ────────────────────────────────────────────────────────────────────────────

    @property
    def _patience_s(self) -> float:
        return self._core.config.patience_s

    def _set_tick(self, out: Output, now: float, after_s: float | None = None) -> None:
        if not self._ticks or after_s is not None:
            self._ticks = True
            wait_s = self._patience_s / BEATS if after_s is None else after_s
            out.timers.append(SetTimer(TICK, now + wait_s))

    def tick(self, out: Output, now: float) -> None:
        self._ticks = False
        fed = self.fed
        limit_s = self._patience_s
        if fed is not None:
            if now - fed.heard > (limit_s if fed.counts else limit_s * IMAGE_PATIENCE):
                self._drop(f"nothing was heard for {limit_s:g} s", out, now)
            else:
                received = self._core.acknowledged()
                out.feed.append((fed.connection, SiteFacts(self.count + 1, (), received)))
        elif self.followed is not None:
            waiting = self.parts or self.fed_life == NEVER
            if now - self.heard > (limit_s * IMAGE_PATIENCE if waiting else limit_s):
                self._drop(f"nothing was heard for {limit_s:g} s", out, now)
        self._look_stalled(out, now)
        self.speak(out, now)
        if not self.is_alone:
            self._set_tick(out, now)

    def _look_stalled(self, out: Output, now: float) -> None:
        """A primary that can release nothing sends its clients, and its neighbours, elsewhere."""
        if not self._seat.leads or self._is_free:
            self._released = now
        stalled = now - self._released > STALLED * self._patience_s
        if stalled and not self.stalled:
            self.stalled = True
            self.notice("%s", self.refusal())
            self._core.dismiss(self.refusal(), out, now)
        elif not stalled:
            self.stalled = False
        self.aim(out)

    # ── the witness ──────────────────────────────────────────────────────────────────────

    def met_witness(self, connection: int, out: Output, now: float) -> None:
        config, seat = self._core.config, self._seat
        self.witness, self.told = connection, None
        self._core.peers[connection] = Peer("witness", WITNESS)
        hello = WitnessHello(
            PROTOCOL_VERSION, config.name, config.identity, seat.me, self._core.own_address
        )
        out.send.append((connection, hello))
        out.send.append((connection, RegisterQuery()))
        del now

    def speak(self, out: Output, now: float) -> None:
        """Ask the witness how the register is, or for what we need."""
        if self.witness:
            out.send.append((self.witness, self._wish(now) or RegisterQuery()))

    def _wish(self, now: float) -> RegisterClaim | None:
        seat, told = self._seat, self.told
        if told is None:
            return None
        if not told.term:
            founds = not seat.founding and not self._core.config.second
            if not seat.witness and (seat.leads or founds):
                return RegisterClaim(seat.term, seat.standby)
            return None
        if told.witness != seat.witness:
            return None
        if seat.leads:
            if seat.standby and self._is_lost():
                return RegisterClaim(seat.term)
            if seat.standby and told.standby != seat.standby and told.primary == seat.me:
                return RegisterClaim(seat.term, seat.standby)
        elif seat.in_step and self._misses_primary(now):
            return RegisterClaim(seat.term)
        return None

    @property
    def _is_free(self) -> bool:
        """Nothing waits for a standby, nor would."""
        return not self.withheld() and not (self._seat.standby and self._is_lost())

    def _is_lost(self) -> bool:
        return self.fed is None or self.fed.replica != self._seat.standby or not self.fed.counts

    def _misses_primary(self, now: float) -> bool:
        return self.lost and now - self.heard >= self._patience_s * GRACE

    def register_told(
        self, connection: int, peer: Peer, told: RegisterTold, out: Output, now: float
    ) -> None:
        del peer
        if connection != self.witness:
            return
        _check_term(told.term, told.address)
        seat, first = self._seat, self.told is None
        self.told = told
        known, self.problem = self.problem, ""
        if seat.witness and told.witness != seat.witness:
            self.problem = "the witness has lost its register; an operator says who leads: promote"
        elif not told.term:
            pass  # nobody has ever led: perhaps we may
        elif seat.leads and told.term < seat.term and seat.witness:
            self.problem = "an operator has promoted it, and the witness does not know: promote it"
        elif told.primary == seat.me:
            self._is_primary(told, out, now)
        elif seat.leads and not seat.witness:
            self.problem = (
                f"the witness knows another primary of {self._core.config.name}, at "
                f"{told.address}: move the folder away, or give the site another name"
            )
        elif self.is_news(told.term):
            self._is_secondary(told, out, now)
        if self.problem and self.problem != known:
            self.notice("%s: %s", self._core.config.name, self.problem)
        if first and self._wish(now) is not None:
            self.speak(out, now)

    def is_news(self, term: int) -> bool:
        """Whether an answer with this term may be from after what we know."""
        return term >= self._seat.term

    def _is_primary(self, told: RegisterTold, out: Output, now: float) -> None:
        seat = self._seat
        if not self.is_news(told.term) or told.term == seat.term:
            return
        if not seat.leads:
            self._lead(replace(seat, term=told.term, witness=told.witness), out, now)
        else:
            new = replace(seat, term=told.term, standby=told.standby, witness=told.witness)
            self._sit(new, out, now)
            self._tell_in_step(out)
            self._admit(out, now)
            self._look_stalled(out, now)

    def _is_secondary(self, told: RegisterTold, out: Output, now: float) -> None:
        seat = self._seat
        other = self._other(told.address)
        new = replace(
            seat,
            term=told.term,
            leads=False,
            standby=0,
            in_step=told.standby == seat.me,
            leader=told.primary,
            other=other,
            witness=told.witness,
        )
        if seat.leads:
            self._step_down(new, out, now)
        elif new != seat:
            self._sit(new, out, now)
        if other and other != self.other:
            self.other = other
            self.aim(out)

    def _other(self, address: str) -> str:
        """Where the other replica is. The register may name us, by the folder that we had."""
        is_ours = not address or address == self._core.own_address
        return self._seat.other if is_ours else address

    # ── changes of the seat ──────────────────────────────────────────────────────────────

    def _sit(self, seat: Seat, out: Output, now: float) -> None:
        before, name = self._seat, self._core.config.name
        self._core.journal_own(seat, out, now)
        if before.leads != seat.leads:
            what = "leads" if seat.leads else "does not lead"
            self.notice("%s %s in term %d", name, what, seat.term)
        if before.standby != seat.standby:
            if seat.standby:
                self.notice("%s has a standby in step, at %s", name, self.other)
            elif seat.leads:
                self.notice("%s goes on without a standby in term %d", name, seat.term)
        if seat.in_step and not before.in_step:
            self.notice("%s is the standby, in step with %s", name, self.other)

    def _lead(self, seat: Seat, out: Output, now: float) -> None:
        """We are primary from now on, and alone."""
        founding = seat.founding or self._core.durable.config.incarnation
        new = replace(seat, leads=True, founding=founding, standby=0, in_step=False, leader=seat.me)
        self._sit(new, out, now)
        self.followed, self.fed_life, self.parts = None, NEVER, 0
        self._forget_kept()
        self._released = self._core.begin_to_lead(out, now)
        if self.connection:
            self._greet(out, heard=False)
        self.aim(out)

    def _step_down(self, seat: Seat, out: Output, now: float) -> None:
        """Another one leads. What waits for a standby is never sent."""
        self._core.dismiss(f"another process leads {self._core.config.name}", out, now)
        self._sit(seat, out, now)
        self.fed, self.had, self.stalled = None, -1, False
        self._forget_kept()
        self.heard = now
        self.lost = not self.connection
        if self.connection:
            self._greet(out, heard=True)
        self.aim(out)

    def _forget_kept(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0

    # ── the other replica ────────────────────────────────────────────────────────────────

    def dialled(self, connection: int, out: Output, now: float) -> None:
        self._bind(connection, out, now)
        self._mine = True
        self._greet(out, heard=False)

    def _bind(self, connection: int, out: Output, now: float) -> None:
        old = self.connection
        if old and old != connection:
            self._core.peers.pop(old, None)
            self._gone(out, now)
            out.close.append(Close(old, "", "a newer connection took over"))
        self.connection = connection
        self._mine = False
        self._core.peers[connection] = Peer("pair", PAIR)

    def _greet(self, out: Output, *, heard: bool) -> None:
        config, seat = self._core.config, self._seat
        hello = PairHello(
            PROTOCOL_VERSION,
            config.name,
            config.identity,
            seat.me,
            seat.founding,
            seat.term,
            seat.leads,
            self._core.own_address,
            self.life if seat.leads else self.fed_life,
            self.count if seat.leads else self.applied,
            heard,
        )
        out.send.append((self.connection, hello))

    def hello(
        self, connection: int, peer: Peer | None, hello: PairHello, out: Output, now: float
    ) -> None:
        self._check_hello(hello)
        if peer is None:
            if connection < self.connection:
                out.close.append(Close(connection, "", "a newer connection took over"))
                return
            self._bind(connection, out, now)
        seat = self._seat
        self.other = self._other(hello.address) or self.other
        if not hello.heard:
            self._greet(out, heard=True)
        self.heard = now
        if hello.leads and seat.leads:
            self._two_lead(hello, out, now)
        elif hello.leads:
            self._follow(hello, out, now)
        elif seat.leads:
            self._feed(connection, hello, out, now)
        self._set_tick(out, now)
        self.aim(out)

    def _check_hello(self, hello: PairHello) -> None:
        config, seat = self._core.config, self._seat
        if hello.version != PROTOCOL_VERSION:
            raise VersionError(f"it speaks version {hello.version}, we speak {PROTOCOL_VERSION}")
        if (hello.site, hello.identity) != (config.name, config.identity):
            raise ProtocolError(
                f"{hello.site} was founded as part of {hello.identity!r}, {config.name} as part of "
                f"{config.identity!r}: both replicas need the same name, line, placement and mode"
            )
        if hello.replica == seat.me:
            raise ProtocolError(
                f"replica {seat.me} met itself: its address is that of the other replica, or its "
                "folder was copied"
            )
        if hello.founding and seat.founding and hello.founding != seat.founding:
            raise ProtocolError(
                f"{config.name} was founded twice, as {seat.founding} and as {hello.founding}: "
                "move the folder of one of both away"
            )
        _check_term(hello.term, hello.address)
        if not 0 <= hello.number <= LAST_NUMBER:
            raise ProtocolError(f"a replica cannot have {hello.number} facts")

    def _two_lead(self, hello: PairHello, out: Output, now: float) -> None:
        seat = self._seat
        if hello.term > seat.term:
            leader, other = hello.replica, self._other(hello.address)
            new = replace(seat, term=hello.term, leads=False, standby=0, leader=leader, other=other)
            self._step_down(new, out, now)
            self._follow(hello, out, now)
        elif hello.term == seat.term:
            self.problem = f"two processes lead in term {seat.term}; promote one of them again"

    def _follow(self, hello: PairHello, out: Output, now: float) -> None:
        seat = self._seat
        if hello.term < seat.term and hello.replica != seat.leader:
            self._drop(f"replica {hello.replica} leads in term {hello.term}, not now", out, now)
            return  # it does not know yet that it is deposed
        if self.fed_life != hello.life:
            self.fed_life, self.applied, self.parts = NEVER, 0, 0
        self.followed = hello
        self.lost = False
        self.heard = now
        new = replace(
            seat,
            term=max(seat.term, hello.term),
            leader=hello.replica,
            other=self._other(hello.address),
            in_step=seat.in_step and hello.replica == seat.leader and hello.term <= seat.term,
        )
        if new != seat:
            self._sit(new, out, now)

    def _feed(self, connection: int, hello: PairHello, out: Output, now: float) -> None:
        """The other replica follows us: send what it does not have, or all."""
        if self.fed is not None and self.fed.connection == connection:
            return
        other = self._other(hello.address)
        if other != self._seat.other:
            self._sit(replace(self._seat, other=other), out, now)
        first = self.count - len(self._kept) + 1
        self.fed = Fed(connection, hello.replica, heard=now)
        if hello.life == self.life and first <= hello.number + 1 <= self.count + 1:
            left = list(self._kept)[hello.number + 1 - first :]
            self._send_facts(hello.number + 1, left, out)
            return
        payloads = image_of(self._core.durable)
        number, count = self.count, len(payloads)
        for fact in out.persist:  # of this very step: they are in the image
            assert type(fact.body) in OWN_FACTS
        for at, payload in enumerate(payloads, 1):
            out.feed.append((connection, SiteImagePart(self.life, number, at, count, payload)))

    def _send_facts(self, first: int, payloads: list[bytes], out: Output) -> None:
        assert self.fed is not None
        some: list[bytes] = []
        size = 0
        for payload in payloads:
            some.append(payload)
            size += len(payload)
            if size > FRAME_BYTES:
                out.feed.append((self.fed.connection, SiteFacts(first, tuple(some))))
                first, some, size = first + len(some), [], 0
        out.feed.append((self.fed.connection, SiteFacts(first, tuple(some))))

    def _drop(self, why: str, out: Output, now: float) -> None:
        connection = self.connection
        self._core.peers.pop(connection, None)
        out.close.append(Close(connection, "", why))
        self.closed(connection, out, now)

    def closed(self, connection: int, out: Output, now: float) -> None:
        """The connection to the other replica, or to the witness, has ended."""
        if connection == self.witness:
            self.witness, self.told = 0, None
        elif connection == self.connection:
            self._gone(out, now)
            self.aim(out)

    def _gone(self, out: Output, now: float) -> None:
        self.connection, self._mine = 0, False
        if self.fed is not None:
            self.fed = None
            self.speak(out, now)
        if self.followed is not None:
            self.followed, self.lost, self.heard = None, True, now
            self._set_tick(out, now, self._patience_s * GRACE)

    # ── as primary ───────────────────────────────────────────────────────────────────────

    def acked(
        self, connection: int, peer: Peer, ack: SiteFactsAck, out: Output, now: float
    ) -> None:
        del peer
        fed = self.fed
        if fed is None or fed.connection != connection:
            return
        fed.heard = now
        if ack.upto > self.count:
            raise ProtocolError("the standby acknowledges facts that are not there yet")
        if ack.upto < fed.acked:
            return
        fed.acked = ack.upto
        standby = self._seat.standby
        if not fed.counts:
            fed.counts = True
            fed.floor = 0 if fed.replica == standby else self.count
            self._tell_in_step(out)
        if fed.replica == standby and ack.upto > self.had:
            self.had = ack.upto
            self._released = now
            if self.stalled:
                self._look_stalled(out, now)
        while self._kept and self.count - len(self._kept) < ack.upto:
            self._kept_bytes -= len(self._kept.popleft())
        self._admit(out, now)

    def _admit(self, out: Output, now: float) -> None:
        """The standby has everything that has left: from now on we wait for it, come what may."""
        fed, seat = self.fed, self._seat
        if fed is None or not fed.has_all or seat.standby or not seat.leads:
            return
        self.had = fed.acked
        self._sit(replace(seat, standby=fed.replica), out, now)
        self._tell_in_step(out)
        self.speak(out, now)

    def _tell_in_step(self, out: Output) -> None:
        seat, fed = self._seat, self.fed
        if fed is not None and fed.counts and fed.replica == seat.standby:
            granted = self.told is not None and self.told.standby == seat.standby
            if granted or not seat.witness:
                out.send.append((fed.connection, InStep(seat.term, seat.witness)))

    # ── as standby ───────────────────────────────────────────────────────────────────────

    def _is_followed(self, connection: int) -> bool:
        return self.followed is not None and connection == self.connection

    def image_part(
        self, connection: int, peer: Peer, part: SiteImagePart, out: Output, now: float
    ) -> None:
        del peer
        if not self._is_followed(connection):
            return
        self.heard = now
        if part.at == 1:
            self.parts = 0
        if part.at != self.parts + 1 or not part.at <= part.count:
            raise ProtocolError(f"part {part.at} of an image comes after part {self.parts}")
        try:
            if part.at == 1:
                records.decode_founded(part.payload)
            else:
                records.check_part(part.payload)
        except DecodeError as problem:
            raise ProtocolError(f"part {part.at} of an image makes no sense: {problem}") from None
        self.parts = part.at
        self._core.journal_own(ImagePartTaken(part.at, part.count, part.payload), out, now)
        if part.at == part.count:
            self.parts = 0
            self.fed_life, self.applied = part.life, part.number
            founding = self._core.durable.config.incarnation
            if founding != self._seat.founding:
                self._sit(replace(self._seat, founding=founding), out, now)
            self._core.taken()
            self._acknowledge(out)

    def facts(self, connection: int, peer: Peer, frame: SiteFacts, out: Output, now: float) -> None:
        del peer
        if not self._is_followed(connection) or self.fed_life == NEVER:
            return
        self.heard = now
        durable = self._core.durable
        if frame.first > self.applied + 1:
            raise ProtocolError(f"fact {frame.first} comes after fact {self.applied}")
        for payload in frame.payloads[self.applied + 1 - frame.first :]:
            if payload:
                self._core.mirror(self._decoded(payload), out)
            self.applied += 1
        for site, received in frame.received.items():
            if site in durable.ledgers:
                durable.ledgers[site].trim(received)
        self._acknowledge(out)

    def _decoded(self, payload: bytes) -> Fact:
        try:
            fact = records.decode_fact(payload)
        except DecodeError as problem:
            raise ProtocolError(f"a fact makes no sense: {problem}") from None
        if type(fact.body) in OWN_FACTS or not self._core.durable.now <= fact.now < math.inf:
            raise ProtocolError(f"fact {self.applied + 1} of the primary is not for a standby")
        return fact

    def _acknowledge(self, out: Output) -> None:
        out.send.append((self.connection, SiteFactsAck(self.applied)))

    def in_step(self, connection: int, peer: Peer, frame: InStep, out: Output, now: float) -> None:
        del peer
        seat = self._seat
        if self._is_followed(connection) and frame.term >= seat.term:
            _check_term(frame.term, "")
            new = replace(seat, term=frame.term, in_step=True, witness=frame.witness)
            if new != seat:
                self._sit(new, out, now)

    # ── operators ────────────────────────────────────────────────────────────────────────

    def promote(
        self, connection: int, peer: Peer | None, request: PromoteRequest, out: Output, now: float
    ) -> None:
        del peer
        error, text = self._objection(request.risk)
        if not error:
            self._promoted(out, now)
            text = f"{self._core.config.name} is led by this process, alone, in term "
            text += str(self._seat.term)
        out.deliver.append((connection, PromoteAnswer(error, text)))

    def _objection(self, risk: bool) -> tuple[str, str]:
        seat, name = self._seat, self._core.config.name
        if seat.leads and self._is_free and not self.problem:
            return "NotSafe", f"this process leads {name} already, in term {seat.term}"
        if seat.leads and self.problem and not (seat.standby and self._is_lost()):
            return "", ""  # the witness does not know it any more
        if risk:
            return "", ""
        if self.connection and (self.fed is not None or self.followed is not None):
            what = "primary" if self.followed is not None else "standby"
            return "NotSafe", f"the {what} of {name} at {self.other} answers; stop it first"
        if self._core.config.witness and (self.witness or not self.problem):
            return "NotSafe", (
                f"{name} has a witness, at {self._core.config.witness}, and only what it grants is "
                "safe; start it, and wait"
            )
        if seat.leads:
            return "NotSafe", (
                f"the standby of {name} is away, and may be promoted instead: it has everything "
                "that left here. Start it again, or promote it; or let this process go on alone, "
                "with --risk-double-numbers, and never promote the other one before it is in step "
                "again"
            )
        if not seat.founding:
            return "NotSafe", f"this process has no state of {name} yet: it would begin anew"
        if not seat.in_step:
            return "NotSafe", (
                f"this process was not in step with the primary of {name}: it may lack numbers "
                "that were given, and would give them again"
            )
        if seat.witness:
            return "NotSafe", f"the witness of {name} may have granted otherwise; start with it"
        return "", ""

    def _promoted(self, out: Output, now: float) -> None:
        term = 1 + max(self._seat.term, self.told.term if self.told is not None else 0)
        seat = replace(self._seat, term=term)
        if self.witness and self.told is not None:
            seat = replace(seat, witness=self.told.witness)
            out.send.append((self.witness, RegisterClaim(term - 1, 0, forced=True)))
        self.problem = ""
        if seat.leads:
            self._sit(replace(seat, standby=0), out, now)
            self._look_stalled(out, now)
        else:
            self._lead(seat, out, now)

    # ── looking in ───────────────────────────────────────────────────────────────────────

    def account(self) -> dict[str, Any]:
        seat, fed = self._seat, self.fed
        mirrored = fed is not None and fed.replica == seat.standby and fed.counts
        return {
            "role": "primary" if seat.leads else "standby",
            "term": seat.term,
            "replica": seat.me,
            "standby": self.other,
            "connected": bool(self.connection),
            "in_step": seat.in_step if not seat.leads else mirrored,
            "withheld": min(self.withheld(), self.count) if seat.leads else 0,
            "stalled": self.stalled,
            "witness": self._witness_account(),
            "problem": self.problem or (self.refusal() if self.stalled else ""),
        }

    def _witness_account(self) -> str:
        if not self._core.config.witness:
            return ""
        return "up" if self.told is not None else "away"


def image_of(durable: DurableSite) -> list[bytes]:
    """The state that a standby begins with."""
    founded = records.encode(records.founded_as(durable.config))
    return [founded, *(records.encode(part) for part in durable.site_parts())]


def _check_term(term: int, address: str) -> None:
    if not 0 <= term <= LAST_NUMBER:
        raise ProtocolError(f"there is no term {term}")
    if len(address) > MAX_ADDRESS_CHARS or not (address.isprintable() or not address):
        raise ProtocolError("the address of a replica is too long, or not printable")
