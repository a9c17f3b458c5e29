"""What the folder of a broker holds, in terms that every design of its state has.

Reads with today's code what `folders.json` tells of the folders that an older release wrote. When
durable state moves to another place, change this file with it: the terms, and what the JSON file
says, stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from motet.broker.folder.recovery import read_durable


def state_of(folder: Path) -> dict[str, Any]:
    durable, position = read_durable(folder)
    routing, starts = durable.routing.state, durable.routing.starts
    return {
        "name": durable.config.name,
        "incarnation": durable.config.incarnation,
        "facts": position,
        "now": durable.now,
        "sessions": {each.client: _session(each) for each in durable.sessions},
        "subscriptions": sorted(_entries(routing.subscriptions)),
        "advertisements": sorted(_entries(routing.advertisements)),
        "pubends": sorted(routing.pubends),
        "hosted": routing.hosted,
        "floors": dict(durable.delivery.floors),
        "starts": {
            _text(op): dict(known)
            for op, known in starts.known.items()
            if op in routing.subscriptions
        },
        "tentative": sorted(map(_text, starts.tentative)),
        "waiting": sorted(map(_text, routing.waits)),
        "links": {
            name: {
                "sent": ledger.record.sent,
                "received": ledger.record.received,
                "unacknowledged": len(ledger.outbox),
            }
            for name, ledger in durable.ledgers.items()
        },
        "transactions": _transactions(durable.transactions),
        "sinks": {
            name: {"query": sink.query, "epoch": sink.epoch, "keys": dict(sink.keys)}
            for name, sink in durable.sinks.state.sinks.items()
        },
    }


def _session(session: Any) -> dict[str, Any]:
    return {
        "epoch": session.epoch,
        "keep_s": session.keep_s,
        "total_order": session.total_order,
        "cursors": dict(session.cursors),
        "names": {str(number): name for number, name in session.names.items()},
        "since": {str(number): dict(reach) for number, reach in session.since.items()},
        "willing": session.willing,
    }


def _transactions(machine: Any) -> dict[str, Any]:
    state, outcomes = machine.image(), machine.outcomes
    return {
        "number": state.number,
        "outcomes": {tx: [o.number, o.committed, o.key] for tx, o in outcomes.items()},
        "parts": {tx: sorted(local.parts) for tx, local in state.locals.items()},
        "invitations": {
            tx: sorted(invitation.client for invitation in local.invitations)
            for tx, local in state.locals.items()
            if local.invitations
        },
        "coordinated": sorted(state.coordinations),
        "not settled": sorted(state.active),
        "opened": sorted(state.opened),
        "gathered": sorted(state.gatherings),
    }


def _entries(table: Iterable[Any]) -> list[list[str]]:
    return [[_text(each.id), str(each.filter), each.source.name, each.tx] for each in table]


def _text(op: Any) -> str:
    return f"{op.client}/{op.epoch}/{op.sequence}"
