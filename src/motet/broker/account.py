"""What a broker says of itself when an operator asks; plain values only."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from motet.broker.core import BrokerCore

LONG_LISTING = 1000
"""Lists are no longer than this, and nothing is counted that takes a look at more."""


def account_of(core: BrokerCore) -> dict[str, Any]:
    state = core.durable.routing.state
    return {
        "broker": core.config.name,
        "incarnation": core.config.incarnation,
        "covering": core.config.covering,
        "links": {
            name: {
                "phase": link.condition,
                "refusal": link.soft.refusal,
                "life": link.ledger.record.life,
                "losses": link.ledger.record.losses,
                "sent": link.ledger.record.sent,
                "received": link.ledger.record.received,
                "unacknowledged": len(link.ledger.outbox),
                "lost_publications": link.soft.lost,
                "overtaken_publications": link.soft.overtaken,
            }
            for name, link in core.links.items()
        },
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
