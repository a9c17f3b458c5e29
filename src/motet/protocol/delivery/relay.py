"""Spans on their way down: filtered per neighbour, whole batches passed on untouched."""

from __future__ import annotations

from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.messages import DeliveryFrame, Knowledge
from motet.protocol.delivery.ranges import Range
from motet.protocol.delivery.spans import Record, Span, clip, joined, shortened, size_bytes
from motet.protocol.delivery.state import Limits, Stream
from motet.protocol.publication import Publication

Send = list[tuple[str, DeliveryFrame]]
Part = tuple[list[int], list[Publication], list[Record]]


class Relay:
    __slots__ = ("_interest", "_limits")

    def __init__(self, interest: Interest, limits: Limits) -> None:
        self._interest = interest
        self._limits = limits

    # ── for the first time ───────────────────────────────────────────────────────────────

    def spread(
        self, stream: Stream, span: Span, masks: list[int], source: str | None, send: Send
    ) -> None:
        """New knowledge goes at once to whom it concerns; to others it is silence, and waits."""
        interest = self._interest
        neighbours = interest.neighbours()
        if not neighbours and not stream.members:
            return
        everything = interest.pass_all()
        parts: dict[str, Part | None] = {}
        if not span.records and masks and masks.count(masks[0]) == len(masks):
            for neighbour in interest.way(masks[0] | everything).neighbours:
                parts[neighbour] = None
        elif masks or span.records:
            self._sort(span, masks, everything, parts)
        for neighbour in neighbours:
            if neighbour == source:
                continue
            if neighbour in parts:
                self._tell(stream, neighbour, span, parts[neighbour], send)
                continue
            out = stream.outs.get(neighbour)
            if out is None:
                continue
            if out.curious and out.curious.overlaps(span.since, span.upto):
                self._tell(stream, neighbour, span, ([], [], []), send)
            else:
                out.silent(span.since, span.upto)
        if stream.members:  # who asked gets the answer, whoever of its cell gets the news
            self.repeat(stream, span, source, False, 0, send)

    def _sort(
        self, span: Span, masks: list[int], everything: int, parts: dict[str, Part | None]
    ) -> None:
        way = self._interest.way
        for tick, publication, mask in zip(span.ticks, span.batch, masks, strict=True):
            for neighbour in way(mask | everything).neighbours:
                part = parts.setdefault(neighbour, ([], [], []))
                assert part is not None
                part[0].append(tick)
                part[1].append(publication)
        for record in span.records:
            mask = self._interest.record_mask(record) | everything
            for neighbour in way(mask).neighbours:
                part = parts.setdefault(neighbour, ([], [], []))
                assert part is not None
                part[2].append(record)

    def _tell(
        self, stream: Stream, neighbour: str, span: Span, part: Part | None, send: Send
    ) -> None:
        out = stream.out(neighbour, span.since)
        since = out.telling(span.since, span.upto)
        if out.curious:
            out.curious.remove(since, span.upto)
        if part is None:
            if since != span.since:
                span = Span(since, span.upto, span.ticks, span.batch)
        else:
            span = Span(since, span.upto, part[0], part[1], tuple(part[2]))
        send.append((neighbour, Knowledge(stream.pubend, span)))

    # ── again ────────────────────────────────────────────────────────────────────────────

    def repeat(
        self, stream: Stream, span: Span, source: str | None, cut: bool, asof: int, send: Send
    ) -> None:
        """Repeated knowledge goes only where somebody is curious, and only that part."""
        for neighbour, out in stream.outs.items():
            if neighbour == source or not (out.curious or out.deep):
                continue
            for low, high in out.wanted(span.since, span.upto, asof):
                self._resend(stream, neighbour, clip(span, low, high), cut, asof, send)

    def answer(
        self, stream: Stream, neighbour: str, since: int, upto: int, asof: int, send: Send
    ) -> tuple[list[Range], bool]:
        """Tell what is remembered of a range. Returns what is not, and whether one piece was too
        small: then the rest of the range was not looked at."""
        limits = self._limits
        missing = stream.memory.missing(since, upto)
        events, volume = 0, 0
        run: list[Span] = []
        for piece in stream.memory.pieces(since, upto):
            piece = shortened(piece, limits.piece_events - events)
            if run and (run[-1].upto + 1 != piece.since or run[-1].lost or piece.lost):
                self._resend(stream, neighbour, joined(run), False, asof, send)
                run = []
            run.append(piece)
            events += len(piece.ticks)
            volume += size_bytes(piece)
            full = events >= limits.piece_events or volume >= limits.piece_bytes
            if full and piece.upto < upto:
                self._resend(stream, neighbour, joined(run), True, asof, send)
                return [part for part in missing if part[1] < piece.since], True
        if run:
            self._resend(stream, neighbour, joined(run), False, asof, send)
        return missing, False

    def _resend(
        self, stream: Stream, neighbour: str, span: Span, cut: bool, asof: int, send: Send
    ) -> None:
        bit = self._interest.bit(neighbour)
        if not bit & self._interest.pass_all():
            span = self._filtered(span, bit)
        send.append((neighbour, Knowledge(stream.pubend, span, True, cut, asof)))

    def _filtered(self, span: Span, bit: int) -> Span:
        ticks, batch, records = span.ticks, span.batch, span.records
        if batch:
            masks = self._interest.masks(batch)
            keep = [at for at, mask in enumerate(masks) if mask & bit]
            if len(keep) < len(batch):
                ticks = [ticks[at] for at in keep]
                batch = [batch[at] for at in keep]
        if records:
            records = tuple(each for each in records if self._interest.record_mask(each) & bit)
        if batch is span.batch and len(records) == len(span.records):
            return span
        return Span(span.since, span.upto, ticks, batch, records, span.lost)
