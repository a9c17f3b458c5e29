"""Transactions in scenarios: who begins one, what everybody does in it, and how it ends.

begin alice T1 [none]      alice begins a transaction that the scenario calls T1: isolated, or
                           not; key=k and timeout=3 if need be
in T1 bob subscribe x > 1  what a client does in it; and: unsubscribe 2, advertise, unadvertise,
                           publish x=5, invite x=5
answer bob T1 [words]      bob has done its part; with words, it refuses
commit alice T1            and: abort alice T1 [words]
plan T1 bob subscribe x > 1   one more step of a plan; play alice T1: do all of it
consent bob                its broker may do bob's part of plans
outcome alice T1           what became of it?
read bob                   bob is done with all that it was given
open A                     what a broker knows of transactions that are not over
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from motet.model import Filter, OpId, Value, encode_event
from motet.protocol.delivery.messages import Delivered
from motet.protocol.session import messages as session
from motet.protocol.transactions.messages import Step
from motet.testing.words import number_from, op_of, tx_of

if TYPE_CHECKING:
    from motet.testing.scenario import Scenario

ROUTING: dict[str, type] = {
    "subscribe": session.SubscribeRequest,
    "advertise": session.AdvertiseRequest,
    "unsubscribe": session.UnsubscribeRequest,
    "unadvertise": session.UnadvertiseRequest,
}


class Book:
    """What the scenario calls transactions, and what clients have heard of them."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.plans: dict[str, list[tuple[str, Step]]] = {}
        self.made: dict[tuple[str, str], int] = {}
        self.invited: dict[tuple[str, str], list[session.Invited]] = {}
        """By client and transaction."""
        self.given: dict[str, dict[str, int]] = {}
        """By client and pubend: the last tick that it has heard of."""

    def hear(self, client: str, frame: object) -> None:
        if isinstance(frame, session.Invited):
            self.invited.setdefault((client, frame.tx), []).append(frame)
        elif isinstance(frame, Delivered):
            self.given.setdefault(client, {})[frame.pubend] = frame.upto

    def next_order(self, client: str, tx: str) -> str:
        invited = self.invited.get((client, tx), [])
        self.made[client, tx] = self.made.get((client, tx), 0) + 1
        place = f"{self.made[client, tx]:08d}"
        return f"{invited[-1].order}/{place}" if invited else place


def _ask(stage: Scenario, client: str, kind: type, *args: Any, **settings: Any) -> None:
    stage.counters[client] += 1
    stage._from_client(client, kind(stage.counters[client], *args, **settings))


def _begin(stage: Scenario, text: str) -> None:
    client, name, *words = text.split()
    settings: dict[str, Any] = {"isolated": "none" not in words, **_settings(words)}
    _name(stage, client, name)
    _ask(stage, client, session.BeginRequest, **settings)


def _settings(words: list[str]) -> dict[str, Any]:
    pairs = dict(word.split("=") for word in words if "=" in word)
    found: dict[str, Any] = {"key": pairs["key"]} if "key" in pairs else {}
    return {**found, "timeout_s": float(pairs["timeout"])} if "timeout" in pairs else found


def _name(stage: Scenario, client: str, name: str) -> None:
    """It will be named by the request that comes next."""
    known = stage.brokers[stage.homes[client]].durable.sessions.get(client)
    assert known is not None, f"{client} has no session"
    stage.book.names[name] = f"{client}/{known.epoch}/{stage.counters[client] + 1}"


def _in(stage: Scenario, text: str) -> None:
    name, client, verb, rest = text.split(maxsplit=3)
    tx = stage.book.names[name]
    tag = session.Tag(tx, stage.book.next_order(client, tx))
    _operate(stage, client, verb, rest, tag)


def _operate(stage: Scenario, client: str, verb: str, rest: str, tag: session.Tag) -> None:
    if verb in ROUTING:
        what = number_from(rest) if verb.startswith("un") else Filter.parse(rest)
        _ask(stage, client, ROUTING[verb], what, tag=tag)
        return
    kind = {"publish": session.StageRequest, "invite": session.InviteRequest}[verb]
    _ask(stage, client, kind, tag, body_of(rest))


def _answer(stage: Scenario, text: str) -> None:
    client, name, *words = text.split(maxsplit=2)
    tx = stage.book.names[name]
    invited = stage.book.invited.get((client, tx), [])
    op = invited[-1].op if invited else OpId("", "", 0)  # it answers what nobody has asked
    refusal = "".join(words)
    _ask(stage, client, session.AnswerRequest, tx, op, refusal)


def _end(stage: Scenario, text: str, *, commit: bool) -> None:
    client, name, *words = text.split(maxsplit=2)
    tx, reason = stage.book.names[name], "".join(words)
    _ask(stage, client, session.EndRequest, tx, commit, reason)


def _plan(stage: Scenario, text: str) -> None:
    name, client, verb, rest = text.split(maxsplit=3)
    steps = stage.book.plans.setdefault(name, [])
    order = f"{len(steps) + 1:08d}"
    if verb in ("subscribe", "advertise"):
        step = Step(verb, order, rest, Filter.parse(rest))
    elif verb == "publish":
        step = Step(verb, order, body=bytes(body_of(rest)))
    else:
        step = Step(verb, order, rest)
    steps.append((client, step))


def _play(stage: Scenario, text: str) -> None:
    client, name, *words = text.split()
    parts: dict[str, list[Step]] = {}
    for who, step in stage.book.plans[name]:
        parts.setdefault(who, []).append(step)
    _name(stage, client, name)
    told = tuple((who, tuple(steps)) for who, steps in parts.items())
    settings = _settings(words)
    _ask(stage, client, session.ExecuteRequest, told, **settings)


def _consent(stage: Scenario, client: str) -> None:
    _ask(stage, client, session.ConsentRequest)


def _outcome(stage: Scenario, text: str) -> None:
    client, name = text.split()
    tx = stage.book.names[name]
    _ask(stage, client, session.OutcomeRequest, tx)


def _read(stage: Scenario, client: str) -> None:
    for pubend, upto in stage.book.given.get(client, {}).items():
        stage._from_client(client, session.Processed(pubend, upto))


def _open(stage: Scenario, broker: str) -> None:
    state = stage.brokers[broker].durable.transactions.state
    for local in state.locals.values():
        parts = [f"{client} with {part.version}" for client, part in local.parts.items()]
        waiting = [f"{each.client} invited" for each in local.invitations]
        stage.lines.append(f"{tx_of(local.tx)} open: {', '.join(parts + waiting) or 'nobody'}")
    for tx, coordination in state.coordinations.items():
        stage.lines.append(f"{tx_of(tx)} coordinated here" + ", submitted" * coordination.submitted)
    for asked in state.asked.values():
        missing = " ".join((*asked.neighbours, *asked.clients))
        stage.lines.append(f"{op_of(asked.op)} asked: {missing}")
    for flood in state.floods.values():
        stage.lines.append(f"{tx_of(flood.tx)} {flood.what}, waits for {' '.join(flood.missing)}")
    for tx, gathering in state.gatherings.items():
        stage.lines.append(f"{tx_of(tx)} waits for the parts of {' '.join(gathering.missing)}")
    for submission in state.queue:
        stage.lines.append(f"{tx_of(submission.tx)} submitted" + ", asked" * submission.asked)
    for tx, active in state.active.items():
        missing = " ".join(active.missing)
        cut = ", no cut yet" * active.cutting
        waits = f", waits for {missing}" if missing else ""
        stage.lines.append(f"{tx_of(tx)} decided as {active.decide.number}{waits}{cut}")
    for tx, block in state.blocks.items():
        stage.lines.append(f"{tx_of(tx)} cut at {block.tick}, not logged")
    if not stage.lines:
        stage.lines.append("nothing")


def body_of(text: str) -> Raw:
    """An event, as a scenario writes it: x=5 y='a'."""
    return Raw(encode_event(dict(_attribute(word) for word in text.split()), b""))


def _attribute(word: str) -> tuple[str, Value]:
    name, _, text = word.partition("=")
    return name, text.strip("'") if text.startswith("'") else int(text)


TX_VERBS: dict[str, Callable[[Scenario, str], None]] = {
    "begin": _begin,
    "in": _in,
    "answer": _answer,
    "commit": lambda stage, text: _end(stage, text, commit=True),
    "abort": lambda stage, text: _end(stage, text, commit=False),
    "plan": _plan,
    "play": _play,
    "consent": _consent,
    "outcome": _outcome,
    "read": _read,
    "open": _open,
}
