"""Frames and routing messages as short texts, for scenarios and stories."""

from __future__ import annotations

from msgspec import Raw

from motet.model import Hop, OpId, decode_attributes
from motet.protocol.delivery import messages as delivery
from motet.protocol.delivery.spans import CutRecord, PredecessorRecord, Record
from motet.protocol.hosted import messages as hosted
from motet.protocol.link import messages as link
from motet.protocol.mobility import messages as mobility
from motet.protocol.routing import messages as routing
from motet.protocol.session import messages as session
from motet.protocol.session.state import GRANTED
from motet.protocol.transactions import messages as transactions


def tell(frame: object) -> str:
    """One frame or routing message as a short text."""
    match frame:
        case link.Control(first, messages):
            return f"#{first} " + "; ".join(tell(message) for message in messages)
        case link.ControlAck(received):
            return f"acknowledgement up to #{received}"
        case link.LinkHello(_, _, incarnation, known, received):
            return f"hello, life {incarnation}, I know your life {known} up to #{received}"
        case link.Publications(_, after, batch):
            events = ", ".join(event_of(publication.body) for publication in batch)
            return f"events {events} after #{after}"
        case link.Inquire(op):
            return f"who is missing for {op_of(op)}?"
        case link.Waiting(op, broker, names):
            return f"for {op_of(op)} {broker} waits for {', '.join(names) or 'no broker'}"
        case routing.Advertise() | routing.Subscribe():
            verb = "adv" if isinstance(frame, routing.Advertise) else "sub"
            return f"{verb} {op_of(frame.id)} ({frame.filter}){_marks_of(frame)}"
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
            entries = (f", {each.sequence} ({each.filter}) in force" for each in frame.standing)
            return f"welcome {'back ' if resumed else ''}in {epoch}{''.join(entries)}"
        case session.Done(sequence, value):
            return f"{sequence} is effective" + (f": {_value_of(value)}" if value else "")
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
    return _tell_request(frame)


def _tell_request(frame: object) -> str:
    match frame:
        case session.ClientHello(_, client, resume):
            return f"hello, I am {client}" + (f" and resume {resume}" if resume else "")
        case session.AdvertiseRequest(sequence, filter) | session.SubscribeRequest(
            sequence, filter
        ):
            verb = "advertise" if isinstance(frame, session.AdvertiseRequest) else "subscribe"
            patience = f"within {frame.timeout_s:g} s" if frame.wait else "here"
            return f"{sequence}: {verb} ({filter}) {patience}"
        case session.UnadvertiseRequest(sequence, target):
            return f"{sequence}: remove advertisement {target}"
        case session.UnsubscribeRequest(sequence, target):
            return f"{sequence}: remove subscription {target}"
        case session.Publish(first, bodies):
            shown = ", ".join(event_of(body) for body in bodies)
            return f"publish {shown} from number {first} on"
        case session.Goodbye():
            return "goodbye"
        case session.Farewell(error, text):
            return f"goodnight: {error} {text}".rstrip()
    return _tell_stream(frame)


def _marks_of(frame: routing.Advertise | routing.Subscribe) -> str:
    marks = ", echo" * frame.echo + ", probe" * frame.probe
    marks += f", in {tx_of(frame.tx)}" if frame.tx else ""
    if isinstance(frame, routing.Subscribe):
        marks += ", ended" * frame.ended + (f", above {frame.above}" if frame.above else "")
    return marks


def _tell_stream(frame: object) -> str:
    match frame:
        case delivery.Knowledge(pubend, span, again):
            what = [
                f"{tick}: {event_of(p.body)}"
                for tick, p in zip(span.ticks, span.batch, strict=True)
            ]
            what += map(_tell_record, span.records)
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
    return _tell_transaction(frame)


def _tell_transaction(frame: object) -> str:
    """Messages of transactions, between brokers and to clients."""
    match frame:
        case routing.Switched(op, pubend, tick, ended):
            return f"in {pubend} {_switch_of(op, tick, ended)}"
        case transactions.Letter(broker, body):
            return f"to {broker}: {_tell_letter(body)}"
        case transactions.Invite(tx, op, _, body, _, isolated):
            return f"{op_of(op)} of {tx_of(tx)} invites {event_of(body)}" + ", isolated" * isolated
        case transactions.Reply(op, contributions, reached, refusal):
            done = "".join(f", {_part_of(each)}" for each in contributions)
            return f"{op_of(op)} has reached {reached}{done}" + (refusal and f"; no: {refusal}")
        case transactions.Opening(tx):
            return f"{tx_of(tx)} opens"
        case transactions.Prepare(tx):
            return f"does {tx_of(tx)} hold?"
        case transactions.Decide(tx, number, committed, reason, begun, ended, pubends):
            if not committed:
                return f"{tx_of(tx)} is aborted as {number}: {reason}"
            what = [f"{op_of(each.op)} begins" for each in begun]
            what += [f"{op_of(each.op)} ends" for each in ended]
            what += [f"{pubend} publishes" for pubend in pubends]
            return f"{tx_of(tx)} is committed as {number}: {', '.join(what) or 'nothing'}"
        case transactions.Echoed(tx, what, objection):
            return f"echo {what} {tx_of(tx)}" + (objection and f": {objection}")
        case transactions.Settle(tx):
            return f"{tx_of(tx)} is settled"
        case session.Invited(tx, _, _, _, body):
            return f"invited to {tx_of(tx)} by {event_of(Raw(body))}"
        case session.Decided(tx, number, committed, reason, added, ended):
            told = "committed" if committed else "aborted"
            what = [f"{number_of(s.sequence)} {s.kind} {s.filter} begins" for s in added]
            what += [f"{number_of(each)} ends" for each in ended]
            text = reason or ", ".join(what)
            return f"{tx_of(tx)} is {told} as {number}" + (text and f": {text}")
        case session.Over(sequence):
            return f"{number_of(sequence)} is over"
        case session.ProgressQuery():
            return "how far are you?"
    return _tell_move(frame)


def _tell_move(frame: object) -> str:
    """Messages of clients that move: with the client, on the path, and off it."""
    match frame:
        case mobility.MoveRequest(number, to, timeout_s):
            return f"move {number}: to {to} within {timeout_s:g} s"
        case mobility.MoveOrder(client, to):
            return f"move {client} to {to}"
        case mobility.MoveRefusal(number, error, text, missing):
            return f"move {number} failed: {error}, {text}" + _missing_of(missing)
        case mobility.MoveOrdered(client, error, text, missing):
            told = f"{client} stays: {error}, {text}" if error else f"{client} moves"
            return told + _missing_of(missing)
        case mobility.DrainOrder(draining):
            return "drain" if draining else "drain no more"
        case mobility.DrainOrdered(changed, error, text):
            return f"no: {error}, {text}" if error else "yes" if changed else "it is so already"
        case mobility.Moved(broker):
            return f"your session is at {broker}"
        case mobility.ArrivalHello(_, hello):
            return f"arrival: {tell(hello)}"
        case mobility.MoveOffer(client, _, number, path):
            return f"will {path[-1]} take {client}, move {number}, along {'-'.join(path)}?"
        case mobility.MoveReply(client, _, number, path, _, error, text, missing):
            if missing and not error:
                return f"move {number} of {client} does not get to {' '.join(missing)}"
            told = f"no: {error}, {text}" if error else "yes"
            return f"{path[-1]} to move {number} of {client}: {told}" + _missing_of(missing)
        case mobility.Strays(_, _, client, _, _, batch, last):
            events = ", ".join(event_of(each.body) for each in batch)
            return f"strays for {client}: {events or 'none'}" + ", the last" * last
        case mobility.FencedAck(after, ack):
            return f"{tell(ack)}, after #{after}"
        case mobility.MoveCommit():
            return _tell_commit(frame)
        case mobility.MoveDone(client, _, number):
            return f"{client} has arrived, move {number}"
        case routing.Rehome(target, home, former, residue, upto):
            since = f", {op_of(residue)} stays at {former}" if residue is not None else ""
            told = f", all up to {upto} has arrived" if upto else ""
            return f"{op_of(target)} is at {home}{since}{told}"
    return _tell_hosted(frame)


def _tell_hosted(frame: object) -> str:
    match frame:
        case hosted.ContainerHello():
            return "the container of this broker"
        case hosted.Registered(clients, homes):
            return (
                f"can run {', '.join(clients) or 'nobody'}; begins {', '.join(homes) or 'nobody'}"
            )
        case hosted.RunHosted(client):
            return f"run {client}"
        case hosted.HaltHosted(client):
            return f"stop {client}"
        case hosted.HostedHalted(client):
            return f"{client} does not run"
        case hosted.HostedHello(_, hello):
            return f"hosted {tell(hello)}"
        case hosted.HostedState(number, state, _, outputs, last):
            size = "no state" if state is None else f"{len(state)} bytes"
            return (
                f"continue after checkpoint {number}: {size}, {len(outputs)} outputs up to {last}"
            )
        case hosted.HostedCheckpoint(number, cursors, state, settled, outputs):
            size = "the same state" if state is None else f"{len(state)} bytes"
            told = " ".join(f"{pubend} {tick}" for pubend, tick in cursors.items())
            return f"checkpoint {number} at {told}: {size}, {len(outputs)} outputs after {settled}"
        case hosted.CheckpointKept(number):
            return f"checkpoint {number} is durable"
    return repr(frame)


def _tell_commit(frame: mobility.MoveCommit) -> str:
    rows = [f"sub {op_of(row.id)}" + " ended" * row.ended for row in frame.subscriptions]
    for row in frame.advertisements:
        residue = f" leaves {op_of(row.residue)}" if row.residue is not None else ""
        rows.append(f"adv {op_of(row.id)}{residue}")
    told = f"{frame.client} moves along {'-'.join(frame.path)} with {', '.join(rows) or 'no rows'}"
    for name, ticks in (("levels", frame.levels), ("doubts", frame.doubts)):
        if ticks:
            told += f"; {name} " + " ".join(f"{pubend} {tick}" for pubend, tick in ticks.items())
    return told


def _missing_of(names: tuple[str, ...]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _tell_letter(body: transactions.LetterBody) -> str:
    match body:
        case transactions.Engage(tx, client, steps):
            return f"{client} is to do, in {tx_of(tx)}: {'; '.join(map(_step_of, steps))}"
        case transactions.Engaged(tx, contribution, _, cast):
            return f"in {tx_of(tx)}, of {' and '.join(cast)}, {_part_of(contribution)}"
        case transactions.Open(tx):
            return f"open {tx_of(tx)}"
        case transactions.Submit(tx, contributions, key, isolated):
            done = "; ".join(map(_part_of, contributions)) or "no contributions"
            marks = ", isolated" * isolated + (key and f", key {key}")
            return f"commit {tx_of(tx)}{marks}: {done}"
        case transactions.Withdraw(tx, broker, reason):
            return f"abort {tx_of(tx)}, says {broker}: {reason}"
        case transactions.Query(tx, broker):
            return f"is {tx_of(tx)} over, asks {broker}?"
        case transactions.Verdict(tx, number, committed, reason):
            told = "committed" if committed else "aborted"
            return f"{tx_of(tx)} was {told} as {number}" + (reason and f": {reason}")
        case transactions.Ask(tx, op):
            return f"what became of {tx_of(tx)}, asks {op_of(op)}?"
        case transactions.Tell(op, outcome):
            return f"{op_of(op)} is answered: {_value_of(outcome)}"
        case transactions.Effective(tx):
            return f"{tx_of(tx)} is effective"


def _step_of(step: transactions.Step) -> str:
    what = event_of(Raw(step.body)) if step.body else step.name
    return f"{step.kind} {what}"


def _part_of(part: transactions.Contribution) -> str:
    what = [f"begins {number_of(each.op.sequence)}" for each in part.begun]
    what += [f"ends {number_of(each.op.sequence)}" for each in part.ended]
    what += [f"publishes {part.events} in {part.pubend}"] * bool(part.events)
    what += [f"invites {len(part.invited)}"] * bool(part.invited)
    return f"{part.client}: {', '.join(what) or 'nothing'}"


def _value_of(value: str) -> str:
    return tx_of(value) if value.count("/") >= 2 else value


def _tell_record(record: Record) -> str:
    if isinstance(record, CutRecord):
        switches = ", ".join(_switch_of(*each) for each in record.switches)
        return f"{record.tick}: cut of {tx_of(record.tx)}" + (switches and f" ({switches})")
    if isinstance(record, PredecessorRecord):
        places = ", ".join(f"{pubend} up to {tick}" for pubend, tick in record.predecessors)
        return f"{record.tick}: {record.publisher} comes behind {places}"
    return f"{record.tick}: {op_of(record.op)} starts" + " tentatively" * record.tentative


def _switch_of(op: OpId, tick: int, ended: bool) -> str:
    return f"{op_of(op)} {'ends behind' if ended else 'begins above'} {tick}"


def op_of(op: OpId) -> str:
    return f"{op.client or op.epoch}/{number_of(op.sequence)}"


def number_of(sequence: int) -> str:
    """A sequence that the broker has numbered for its client has a sign."""
    return f"+{sequence - GRANTED}" if sequence > GRANTED else str(sequence)


def number_from(text: str) -> int:
    """The inverse of `number_of`."""
    return GRANTED + int(text) if text.startswith("+") else int(text)


def tx_of(tx: str) -> str:
    """A transaction is named after the request that began it."""
    client, _, number = tx.rsplit("/", 2)
    return f"{client}/{number}"


def hop_of(hop: Hop) -> str:
    return hop.name


def event_of(body: Raw) -> str:
    attributes = decode_attributes(body)
    return "{" + " ".join(f"{name}={value!r}" for name, value in attributes.items()) + "}"
