"""Simulated runs as audit histories: the tables of `motet.audit`, from what checkers read."""

from __future__ import annotations

from pathlib import Path

from motet.audit.writing import HistoryWriter
from motet.model import encode_event
from motet.testing.deals import Deal, Deed
from motet.testing.history import ADDITIONS, Delivery, Event, History, Operation, Session


def write_history(history: History, folder: Path | str, run: str) -> None:
    """Add one run to a folder of histories."""
    writer = HistoryWriter(folder, run=run, part=run)
    _write_overlay(history, writer)
    for session in history.sessions:
        _write_session(history, session, writer)
    for event in history.events:
        _write_event(event, writer)
    for (op, pubend), tick in history.starts.items():
        first = history.first_starts.get((op, pubend), tick)
        writer.add("starts", op=str(op), pubend=pubend, first=first, tick=tick)
    _write_deliveries(history, writer)
    for loss in history.losses:
        span = {"first": loss.first, "last": loss.last, "withdrawn": loss.withdrawn}
        writer.add("losses", process=str(loss.instance), pubend=loss.pubend, **span)
    for pubend, tick in history.lost_upto.items():
        trimmed = history.trimmed_upto.get(pubend, 0)
        writer.add("logs", pubend=pubend, lost_upto=tick, trimmed_upto=trimmed)
    for cut in history.cuts:
        place = {"pubend": cut.pubend, "tick": cut.tick, "last": cut.last}
        writer.add("cuts", **place, tx=cut.tx, number=cut.number, at=cut.at)
    for deal in history.deals.values():
        _write_deal(history, deal, writer)
    writer.flush()


def _write_overlay(history: History, writer: HistoryWriter) -> None:
    for broker in history.tree.brokers:
        writer.add("brokers", broker=broker, is_root=broker == history.root)
    for one, other in history.tree.edges:
        writer.add("links", one=one, other=other)
    for place, spans in history.amnesia.items():
        if isinstance(place, int):
            continue
        ends = (place, "") if isinstance(place, str) else place
        for since, until in spans:
            writer.add("amnesia", one=ends[0], other=ends[1], since=since, until=until)


def _write_session(history: History, session: Session, writer: HistoryWriter) -> None:
    writer.add(
        "sessions",
        client=session.client,
        epoch=session.epoch,
        process=str(session.instance),
        broker=session.broker,
        total_order=session.total_order,
        own_cursors=history.durable.get(session.instance, False),
        opened_at=session.opened_at,
        ended_at=session.ended_at,
        lasting=session in history.living,
    )
    for operation in session.operations.values():
        _write_operation(history, operation, writer)
    for operation in session.forgotten:
        _write_operation(history, operation, writer, is_forgotten=True)


def _write_operation(
    history: History, operation: Operation, writer: HistoryWriter, *, is_forgotten: bool = False
) -> None:
    session = operation.session
    in_force = operation.kind in ADDITIONS and not operation.gone and session in history.living
    writer.add(
        "operations",
        op=str(operation.id),
        client=session.client,
        epoch=session.epoch,
        process=str(session.instance),
        handle=operation.handle,
        number=operation.sequence,
        kind=operation.kind,
        filter="" if operation.filter is None else str(operation.filter),
        target="" if operation.target is None else str(operation.target.id),
        position=operation.position,
        requested_at=operation.requested_at,
        answered_at=operation.answered_at,
        answer=operation.answer,
        effective_at=operation.effective_at,
        ended_at=operation.ended_at,
        ended_position=operation.ended_position,
        doubted_position=operation.doubted_position,
        finished_at=operation.finished_at,
        is_gone=operation.gone,
        is_forgotten=is_forgotten,
        stayed=operation.stayed,
        lasting=in_force and not is_forgotten,
        tx="" if operation.deal is None else operation.deal.id,
        since=operation.since or None,
    )


def _write_event(event: Event, writer: HistoryWriter) -> None:
    if event.session is None:
        return  # it never left its publisher
    body = encode_event(event.attributes, b"")
    tx = "" if event.deal is None else event.deal.id
    whose = {"client": event.client, "epoch": event.session.epoch, "number": event.number}
    writer.add(
        "events",
        **whose,
        position=event.position,
        last_position=event.last_position,
        sent_at=event.sent_at,
        settled_at=event.settled_at,
        fate=event.fate,
        is_sure=event.sure,
        tx=tx,
        body=body,
    )
    if event.tick:
        audience = sorted(str(op) for op in event.audience)
        place = {"pubend": event.pubend, "tick": event.tick}
        writer.add("logged", **place, **whose, tx=tx, audience=audience, body=body)


def _write_deliveries(history: History, writer: HistoryWriter) -> None:
    for nth, delivery in enumerate(history.deliveries):
        taken = delivery.instance not in history.durable
        _write_delivery(delivery, nth, writer, came=True, taken=taken)
    for nth, delivery in enumerate(history.effects):
        _write_delivery(delivery, nth, writer, came=False, taken=True)


def _write_delivery(
    delivery: Delivery, nth: int, writer: HistoryWriter, *, came: bool, taken: bool
) -> None:
    event, operation = delivery.event, delivery.operation
    writer.add(
        "deliveries",
        process=str(delivery.instance),
        handle=delivery.handle,
        op="" if operation is None else str(operation.id),
        nth=nth,
        at=delivery.at,
        publisher=delivery.publisher,
        number=-1 if event is None else event.number,
        pubend=delivery.pubend,
        tick=delivery.tick,
        came=came,
        taken=taken,
    )


def _write_deal(history: History, deal: Deal, writer: HistoryWriter) -> None:
    writer.add(
        "transactions",
        tx=deal.id,
        kind=deal.kind,
        client=deal.session.client,
        epoch=deal.session.epoch,
        key=deal.key,
        at=deal.at,
        commit_at=deal.commit_at,
        answered_at=deal.answered_at,
        outcome=deal.outcome,
    )
    for deed in deal.deeds:
        _write_deed(history, deed, writer)
    for first, then in sorted(deal.before):
        writer.add("before", tx=deal.id, first=first, then=then)
    for told in deal.told:
        asked_at = told.asked_at
        said = {"at": told.at, "asked_at": asked_at, "number": told.number}
        writer.add("words", tx=deal.id, who=told.who, outcome=told.outcome, **said)
    for client, epoch in deal.heirs:
        writer.add("hearers", tx=deal.id, client=client, epoch=epoch)
    for called in deal.called:
        writer.add(
            "calls",
            tx=deal.id,
            op=str(called.op),
            client=called.client,
            epoch=called.epoch,
            at=called.at,
            subscriptions=list(called.subscriptions),
        )


def _write_deed(history: History, deed: Deed, writer: HistoryWriter) -> None:
    event = deed.event
    writer.add(
        "deeds",
        tx=deed.deal.id,
        place=deed.order,
        kind=deed.kind,
        client=deed.session.client,
        epoch=deed.session.epoch,
        number=deed.sequence,
        at=deed.at,
        answer=deed.answer,
        op="" if deed.operation is None else str(deed.operation.id),
        event=0 if event is None else event.number,
        body=encode_event(deed.attributes, b"") if deed.kind == "invite" else None,
        is_carried=deed.carried,
        is_planned=deed.planned,
        stays=deed.session in history.living and deed.process in history.present,
    )
