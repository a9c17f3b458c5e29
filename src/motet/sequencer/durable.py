"""The durable half of a site: its machine and the ledgers of its links, changed only by facts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from motet.errors import InvariantError
from motet.protocol.contract import Fact
from motet.protocol.image import chunked
from motet.protocol.link.facts import ControlReceived, NeighbourMet
from motet.protocol.link.machine import Ledger, LedgersImage, LinkRecord, OutboxImage
from motet.protocol.link.messages import ControlMessage
from motet.protocol.sequencing.site import Site, SiteEffects, effects
from motet.sequencer.config import SiteConfig


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
    def __init__(self, config: SiteConfig) -> None:
        config.check()
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

    def apply(self, fact: Fact) -> SiteEffects:
        """Apply a fact. Messages to other sites are in the ledgers when it returns."""
        now, body = fact.now, fact.body
        if now < self.now:
            raise InvariantError(f"time ran backwards from {self.now} to {now}")
        self.now = now
        out = effects()
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
            self.apply(fact)

    # ── image ────────────────────────────────────────────────────────────────────────────

    def parts(self, *, outboxes: bool = True) -> Iterator[Struct]:
        """All state. Outboxes shrink with acknowledgements, which are no facts."""
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
            else:
                yield part

    def digest(self) -> str:
        """A hash of all durable state but the outboxes; a replay must give the same."""
        picture = hashlib.sha256()
        encode = msgspec.msgpack.Encoder().encode
        for part in self.parts(outboxes=False):
            picture.update(encode(part))
        return picture.hexdigest()

    def validate(self) -> None:
        self.site.validate()
        for neighbour, ledger in self.ledgers.items():
            numbers = [number for number, _ in ledger.outbox]
            last = ledger.record.sent
            if numbers != list(range(last - len(numbers) + 1, last + 1)):
                raise InvariantError(f"the outbox for {neighbour} has gaps")
