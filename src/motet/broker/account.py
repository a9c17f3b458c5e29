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
        "tables": {
            "advertisements": len(state.advertisements),
            "subscriptions": len(state.subscriptions),
            "buffered_subscriptions": (
                len(state.buffered()) if len(state.subscriptions) <= LONG_LISTING else None
            ),
            "clients": len(state.clients),
            "waiting_operations": len(state.waits),
            "ignored_messages": core.durable.routing.ignored,
        },
        "sessions": {
            name: {
                "epoch": soft.epoch,
                "connected": bool(soft.connection),
                "published": soft.published,
                "lost_deliveries": soft.lost,
            }
            for name, soft in sorted(islice(core.clients.items(), LONG_LISTING))
        },
        "session_count": len(core.clients),
        "sessions_away": sum(not soft.connection for soft in core.clients.values()),
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
