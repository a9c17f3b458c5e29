"""The durable half of a site: its machine, the ledgers of its links, and its seat, changed only by
facts.

A standby journals the facts of its primary as its own, and the parts of the image before them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from motet.errors import InvariantError
from motet.protocol.contract import Fact
from motet.protocol.image import chunked
from motet.protocol.link.facts import ControlReceived, NeighbourMet
from motet.protocol.link.machine import Ledger, LedgersImage, LinkRecord, OutboxImage
from motet.protocol.link.messages import ControlMessage
from motet.protocol.sequencing.site import Site, SiteEffects, effects
from motet.sequencer import records
from motet.sequencer.config import SiteConfig
from motet.sequencer.seat import ImagePartTaken, Seat, first_seat


class SiteLedger(Ledger):
    """Sites are founded as one line. So messages for a site that was never met are kept as well,
    and no site is ever given up."""

    @staticmethod
    def restored(record: LinkRecord) -> SiteLedger:
        ledger = SiteLedger(record.neighbour, record.life)
        ledger.record = record
        return ledger

    def enqueue(self, message: ControlMessage) -> None:
        self.record.sent += 1
        self.outbox.append((self.record.sent, message))

    def meet(self, incarnation: int) -> None:
        self.record.incarnation = incarnation


class DurableSite:
    def __init__(self, config: SiteConfig, *, waits: bool | None = None) -> None:
        config.check()
        waits = config.waits if waits is None else waits
        self.seat = first_seat(config.incarnation, waits=waits)
        self.image: list[bytes] = []
        """The parts that have come so far."""
        self._begin(config)

    def _begin(self, config: SiteConfig) -> None:
        self.config = config
        self.now = 0.0
        self.site = Site(
            config.position,
            len(config.sites),
            config.mode,
            remembered=config.remembered,
            remembered_entries=config.remembered_entries,
        )
        self.ledgers: dict[str, Ledger] = {
            name: SiteLedger(name, config.incarnation) for name in config.neighbours
        }

    # ── the door ─────────────────────────────────────────────────────────────────────────

    def apply(self, fact: Fact, *, answers: bool = True) -> SiteEffects:
        """Apply a fact. Messages to other sites are in the ledgers when it returns. Without
        `answers`, those to clients are not made."""
        now, body = fact.now, fact.body
        out = effects(answers=answers)
        if type(body) is Seat:
            self.seat = body
            return out
        if type(body) is ImagePartTaken:
            self._image_part(body)
            return out
        if now < self.now:
            raise InvariantError(f"time ran backwards from {self.now} to {now}")
        self.now = now
        if type(body) is ControlReceived:
            for message in self.ledgers[body.neighbour].take(body.control):
                self.site.take(message, now, out)  # type: ignore[arg-type]
        elif type(body) is NeighbourMet:
            ledger = self.ledgers[body.neighbour]
            assert isinstance(ledger, SiteLedger)
            ledger.meet(body.incarnation)
        else:
            self.site.apply(body, now, out)
        sites = self.config.sites
        for position, sent in out.sends:
            self.ledgers[sites[position]].enqueue(sent)
        return out

    def replay(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            self.apply(fact, answers=False)

    def _image_part(self, part: ImagePartTaken) -> None:
        """The last one replaces the state: what this replica had of its own is discarded."""
        if part.at == 1:
            self.image = []
        self.image.append(part.payload)
        if part.at == part.count:
            payloads, self.image = self.image, []
            founded = records.decode_founded(payloads[0])
            self._begin(replace(self.config, incarnation=founded.incarnation))
            self.restore(records.decode_parts(records.MACHINE_VERSION, payloads[1:]))

    # ── image ────────────────────────────────────────────────────────────────────────────

    def parts(self, *, outboxes: bool = True) -> Iterator[Struct]:
        """All state. Outboxes shrink with acknowledgements, which are no facts."""
        yield self.seat
        for at, payload in enumerate(self.image, 1):
            yield ImagePartTaken(at, 0, payload)
        yield from self.site_parts(outboxes=outboxes)

    def site_parts(self, *, outboxes: bool = True) -> Iterator[Struct]:
        """What a standby mirrors."""
        yield from self.site.parts()
        yield LedgersImage(tuple(each.record for each in self.ledgers.values()))
        if outboxes:
            for neighbour, ledger in self.ledgers.items():
                for rows in chunked(tuple, ledger.outbox):
                    yield OutboxImage(neighbour, rows[0][0], tuple(each for _, each in rows))

    def restore(self, parts: Iterable[Struct]) -> None:
        """Into an empty one."""
        self.site.restore(self._without_ledgers(parts))
        self.now = self.site.now

    def _without_ledgers(self, parts: Iterable[Struct]) -> Iterator[Struct]:
        for part in parts:
            if isinstance(part, LedgersImage):
                for record in part.records:
                    self.ledgers[record.neighbour] = SiteLedger.restored(record)
            elif isinstance(part, OutboxImage):
                outbox = self.ledgers[part.neighbour].outbox
                outbox.extend(enumerate(part.messages, part.first))
            elif isinstance(part, Seat):
                self.seat = part
            elif isinstance(part, ImagePartTaken):
                self.image.append(part.payload)
            else:
                yield part

    def digest(self) -> str:
        """A hash of all durable state but the outboxes; a replay must give the same."""
        return _hashed(self.parts(outboxes=False))

    def site_digest(self) -> str:
        """The same of what a standby mirrors."""
        return _hashed(self.site_parts(outboxes=False))

    def validate(self) -> None:
        self.site.validate()
        for neighbour, ledger in self.ledgers.items():
            numbers = [number for number, _ in ledger.outbox]
            last = ledger.record.sent
            if numbers != list(range(last - len(numbers) + 1, last + 1)):
                raise InvariantError(f"the outbox for {neighbour} has gaps")


def _hashed(parts: Iterable[Struct]) -> str:
    picture = hashlib.sha256()
    encode = msgspec.msgpack.Encoder().encode
    for part in parts:
        picture.update(encode(part))
    return picture.hexdigest()
