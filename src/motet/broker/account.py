"""What a broker says of itself when an operator asks; plain values only."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from motet.model.epochs import broker_of

if TYPE_CHECKING:
    from motet.broker.core import BrokerCore

LONG_LISTING = 1000
"""Lists are no longer than this, and nothing is counted that takes a look at more."""


def account_of(core: BrokerCore, clients: tuple[str, ...] = ()) -> dict[str, Any]:
    state = core.durable.routing.state
    return {
        "broker": core.config.name,
        "incarnation": core.config.incarnation,
        "covering": core.config.covering,
        "links": _links(core),
        "cell": core.membership.describe() if core.membership is not None else None,
        "tables": {
            "advertisements": len(state.advertisements),
            "subscriptions": len(state.subscriptions),
            "buffered_subscriptions": (
                len(state.buffered()) if len(state.subscriptions) <= LONG_LISTING else None
            ),
            "clients": len(state.clients),
            "waiting_operations": len(state.waits),
            "retired_advertisements": len(state.retired),
            "ignored_messages": core.durable.routing.ignored,
        },
        "sessions": {
            name: {
                "epoch": soft.epoch,
                "connected": bool(soft.connection),
                "durable": (name, soft.epoch) in state.clients.durable,
                "published": soft.published,
                "lost_deliveries": soft.lost,
            }
            for name, soft in sorted(islice(core.clients.items(), LONG_LISTING))
        },
        "total_order": _waiting(core),
        **_overlay(core, clients),
        "session_count": len(core.clients),
        "sessions_away": sum(not soft.connection for soft in core.clients.values()),
        "delivery": core.streams.tally.account(),
        "counts": {
            "steps": core.counts.steps,
            "published": core.counts.published,
            "received": core.counts.received,
            "delivered": core.router.delivered,
            "forwarded": core.router.forwarded,
            "refused": core.router.refused,
            "malformed": core.router.malformed,
            "expelled": dict(core.counts.expelled),
        },
    }


def _overlay(core: BrokerCore, clients: tuple[str, ...]) -> dict[str, Any]:
    return {
        "tree": _tree(core),
        "homes": _homes(core, clients),
        "transactions": _transactions(core),
        "sinks": _sinks(core),
    }


def _links(core: BrokerCore) -> dict[str, Any]:
    return {
        name: {
            "phase": link.condition,
            "refusal": link.soft.refusal,
            "life": link.ledger.record.life,
            "losses": link.ledger.record.losses,
            "sent": link.ledger.record.sent,
            "received": link.ledger.record.received,
            "unacknowledged": len(link.ledger.outbox),
            "round_trip_s": round(link.soft.round_trip_s, 6),
            "lost_publications": link.soft.lost,
            "overtaken_publications": link.soft.overtaken,
        }
        for name, link in core.links.items()
    }


def _tree(core: BrokerCore) -> list[list[str]]:
    """All links of the overlay, as far as it is known here."""
    links: dict[tuple[str, str], None] = {}
    for path in core.durable.routing.state.paths.values():
        for one, other in pairwise((core.config.name, *path)):
            links[min(one, other), max(one, other)] = None
    return [list(each) for each in sorted(links)]


def _homes(core: BrokerCore, clients: Iterable[str]) -> dict[str, str | None]:
    """By client, the broker that it is connected to, if it is anywhere."""
    newest = core.durable.routing.state.clients.newest
    found = {client: newest(client) for client in islice(clients, LONG_LISTING)}
    return {client: broker_of(epoch) if epoch else None for client, epoch in found.items()}


def _transactions(core: BrokerCore) -> dict[str, Any]:
    """Those that are open or decided here, the number of the last decision, and what is open."""
    machine = core.durable.transactions
    state = machine.state
    listed = {}
    for tx, local in islice(state.locals.items(), LONG_LISTING):
        coordination = state.coordinations.get(tx)
        invited = [each.client for each in local.invitations]
        listed[tx] = {
            "kind": coordination.kind if coordination is not None else "",
            "state": "submitted" if coordination is not None and coordination.submitted else "open",
            "clients": sorted({*local.parts, *invited}),
            "waiting_for": sorted(dict.fromkeys(invited)),
        }
    for tx, active in islice(state.active.items(), LONG_LISTING):
        listed[tx] = {
            "kind": "",
            "state": "committed" if active.decide.committed else "aborted",
            "clients": [],
            "waiting_for": sorted([*active.missing, *([core.config.name] * active.cutting)]),
        }
    return {
        "root": machine.root,
        "open": len(state.locals),
        "deciding": len(state.queue),
        "taking_effect": len(state.active),
        "last_decision": state.number,
        "listed": listed,
    }


def _sinks(core: BrokerCore) -> dict[str, Any]:
    """Who writes into which sink, how far that is, and what the log does not have yet."""
    state = core.durable.sinks.state
    return {
        name: {
            "query": sink.query,
            "epoch": sink.epoch if sink.query else None,
            "keys": len(sink.keys),
            "copying": [b.tx for b in state.blocks.values() if b.client == name],
        }
        for name, sink in sorted(islice(state.sinks.items(), LONG_LISTING))
    }


def _waiting(core: BrokerCore) -> dict[str, Any]:
    """Clients in total order, and by pubend how many of them have events that wait for it, and
    since when, on the broker's clock."""
    blocked = core.streams.machine.merging.blocked()
    return {
        "clients": len(core.streams.total_order.clients),
        "waiting_for": {
            pubend: {"clients": count, "since_s": round(since_s, 6)}
            for pubend, (count, since_s) in sorted(blocked.items())
        },
    }
