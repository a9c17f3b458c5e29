"""Frames and routing messages in a few words, as scenarios and stories tell them."""

from __future__ import annotations

from msgspec import Raw

from motet.model import Hop, OpId, decode_attributes
from motet.protocol.delivery import messages as delivery
from motet.protocol.link import messages as link
from motet.protocol.routing import messages as routing
from motet.protocol.session import messages as session


def tell(frame: object) -> str:
    """One frame or routing message in a few words."""
    match frame:
        case link.Control(first, messages):
            return f"#{first} " + "; ".join(tell(message) for message in messages)
        case link.LinkHello(_, _, incarnation, known, received):
            return f"hello, life {incarnation}, I know your life {known} up to #{received}"
        case link.Publications(_, after, batch):
            events = ", ".join(event_of(publication.body) for publication in batch)
            return f"events {events} after #{after}"
        case link.Inquire(op):
            return f"who is missing for {op_of(op)}?"
        case link.Waiting(op, broker, names):
            return f"for {op_of(op)} {broker} waits for {', '.join(names) or 'nobody'}"
        case routing.Advertise(id, filter, echo, probe) | routing.Subscribe(
            id, filter, echo, probe
        ):
            verb = "adv" if isinstance(frame, routing.Advertise) else "sub"
            marks = ", echo" * echo + ", probe" * probe
            above = frame.above if isinstance(frame, routing.Subscribe) else 0
            return f"{verb} {op_of(id)} ({filter}){marks}" + (f", above {above}" if above else "")
        case routing.Unadvertise(target, op) | routing.Unsubscribe(target, op):
            verb = "unadv" if isinstance(frame, routing.Unadvertise) else "unsub"
            return f"{verb} {op_of(target)}" + (f", echo {op_of(op)}" if op else "")
        case routing.Echo(op):
            return f"echo {op_of(op)}"
        case routing.PubendHere(pubend):
            return f"{pubend} is here"
        case routing.PubendGone(pubend):
            return f"{pubend} is gone"
        case routing.Started(op, pubend, tick):
            return f"{op_of(op)} has started in {pubend} above {tick}"
        case routing.Join(op, pubend, above):
            return f"{op_of(op)} must start in {pubend} above {above}"
        case routing.ClientHere(client, epoch):
            return f"{client} is here in {epoch}"
        case routing.ClientGone(client, epoch):
            return f"{client} of {epoch} is gone"
        case routing.Complete(whole):
            return "that is all" if whole else "there is more to come"
        case session.Welcome(_, epoch, resumed):
            stands = "".join(f", {each.sequence} ({each.filter}) stands" for each in frame.standing)
            return f"welcome {'back ' if resumed else ''}in {epoch}{stands}"
        case session.Done(sequence):
            return f"{sequence} is effective"
        case session.Failed(sequence, error, text, missing):
            return f"{sequence} failed: {error}, {text}" + (
                f" ({', '.join(missing)})" if missing else ""
            )
        case session.Published(upto, refused):
            return f"published up to {upto}" + "".join(f", {r.error}: {r.text}" for r in refused)
        case session.Deliver(batch):
            return "; ".join(
                f"{event_of(d.publication.body)} for {', '.join(map(str, d.subscriptions))}"
                for d in batch
            )
    return _tell_stream(frame)


def _tell_stream(frame: object) -> str:
    """The same for exactly-once delivery."""
    match frame:
        case delivery.Knowledge(pubend, span, again):
            what = [
                f"{tick}: {event_of(p.body)}"
                for tick, p in zip(span.ticks, span.batch, strict=True)
            ]
            what += [f"{each.tick}: {op_of(each.op)} starts" for each in span.records]
            said = "lost" if span.lost else ", ".join(what) or "silence"
            return f"{pubend} {span.since}-{span.upto}{' again' * again}: {said}"
        case delivery.Nack(pubend, ranges):
            asked = ", ".join(f"{low}-{high}" for low, high in ranges)
            return f"what has {pubend} at {asked}?" if asked else f"what has started in {pubend}?"
        case delivery.AckUp(pubend, upto):
            return f"done with {pubend} up to {upto}"
        case delivery.AckExpected(pubend, upto, starts):
            told = ", ".join(f"{op_of(each.op)} above {each.tick}" for each in starts or ())
            return f"{pubend} is at {upto}" + (f", started: {told}" if told else "")
        case delivery.Delivered(pubend, upto, ticks, batch):
            told = ", ".join(f"{t}: {event_of(p.body)}" for t, p in zip(ticks, batch, strict=True))
            lost = ", ".join(f"{low}-{high} lost" for low, high in frame.lost)
            return f"{pubend} up to {upto}: {told}{lost}"
    return repr(frame)


def op_of(op: OpId) -> str:
    return f"{op.client or op.epoch}/{op.sequence}"


def hop_of(hop: Hop) -> str:
    return hop.name


def event_of(body: Raw) -> str:
    attributes = decode_attributes(body)
    return "{" + " ".join(f"{name}={value!r}" for name, value in attributes.items()) + "}"
