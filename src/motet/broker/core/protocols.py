"""The protocols of a broker: only a literal table.

A row names the facts of a protocol, and how its durable and its soft room are made from the parts
of the broker that exist already; `room` returns another room of the same broker. Facts and changes
reach the rooms in the order of this table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, get_args

from motet.broker.core.cell.membership import Membership
from motet.protocol.delivery.durable import DurableDelivery
from motet.protocol.delivery.facts import DeliveryFact
from motet.protocol.delivery.soft import Streams
from motet.protocol.hosted.durable import DurableHosted
from motet.protocol.hosted.facts import HostedFact
from motet.protocol.hosted.soft import SoftHosted
from motet.protocol.link.durable import DurableLinks
from motet.protocol.link.facts import LinkFact
from motet.protocol.link.soft import SoftLinks
from motet.protocol.mobility.drain import DurableDraining, SoftDraining
from motet.protocol.mobility.durable import DurableMobility
from motet.protocol.mobility.facts import DrainingSet, MoveDecided, PublisherAdmitted
from motet.protocol.mobility.soft import SoftMobility
from motet.protocol.mobility.strays import SoftStrays
from motet.protocol.room import DurableRoom, SoftRoom
from motet.protocol.routing.durable import DurableRouting
from motet.protocol.routing.soft import Publishing
from motet.protocol.session.durable import DurableSessions
from motet.protocol.session.facts import SessionFact
from motet.protocol.session.soft import SoftSessions
from motet.protocol.sinks.durable import DurableSinks
from motet.protocol.sinks.soft import SoftSinks
from motet.protocol.transactions.durable import DurableTransactions
from motet.protocol.transactions.facts import TransactionFact
from motet.protocol.transactions.soft import SoftTransactions

if TYPE_CHECKING:
    from motet.broker.core.broker import BrokerCore
    from motet.broker.core.durable import Durable


class BrokerProtocol(NamedTuple):
    facts: tuple[type, ...] = ()
    durable: tuple[type[DurableRoom], Callable[[Durable], DurableRoom]] | None = None
    soft: tuple[type[SoftRoom], Callable[[BrokerCore], SoftRoom | None]] | None = None


PROTOCOLS: tuple[BrokerProtocol, ...] = (
    BrokerProtocol(
        soft=(Publishing, lambda b: Publishing(b.shared, b.router, b.room(Streams))),
    ),
    BrokerProtocol(
        get_args(LinkFact),
        (
            DurableLinks,
            lambda d: DurableLinks(d, d.config.neighbours, d.config.incarnation, d.routing),
        ),
        (SoftLinks, lambda b: SoftLinks(b.shared, b.room(Streams), b.inquiries)),
    ),
    BrokerProtocol(
        get_args(DeliveryFact),
        (
            DurableDelivery,
            lambda d: DurableDelivery(d, d.routing, d.sessions, d.room(DurableSessions).deadlines),
        ),
        (Streams, lambda b: Streams(b.shared, b.router, b.config.liveness)),
    ),
    BrokerProtocol(
        get_args(SessionFact),
        (
            DurableSessions,
            lambda d: DurableSessions(d, d.sessions, d.routing, d.transactions, d.config.lease_s),
        ),
        (SoftSessions, lambda b: SoftSessions(b.shared, b.room(Streams), b.inquiries)),
    ),
    BrokerProtocol(
        durable=(
            DurableRouting,
            lambda d: DurableRouting(
                d, d.routing, d.sessions, d.room(DurableSessions), d.transactions
            ),
        ),
    ),
    BrokerProtocol(
        get_args(TransactionFact),
        (
            DurableTransactions,
            lambda d: DurableTransactions(
                d, d.transactions, d.routing, d.sessions, d.room(DurableSessions)
            ),
        ),
        (
            SoftTransactions,
            lambda b: SoftTransactions(b.shared, b.room(Streams), b.room(SoftLinks)),
        ),
    ),
    BrokerProtocol(
        (),
        (
            DurableSinks,
            lambda d: DurableSinks(d, d.sinks, d.routing, d.transactions, d.room(DurableSessions)),
        ),
        (
            SoftSinks,
            lambda b: SoftSinks(b.shared, b.room(Streams), b.room(SoftSessions), b.is_among_cells),
        ),
    ),
    BrokerProtocol(
        (MoveDecided, PublisherAdmitted),
        (
            DurableMobility,
            lambda d: DurableMobility(
                d,
                d.config.name,
                d.routing,
                d.sessions,
                d.room(DurableSessions),
                d.transactions,
            ),
        ),
        (
            SoftMobility,
            lambda b: SoftMobility(
                b.shared,
                b.durable.room(DurableMobility),
                b.room(Streams),
                b.room(SoftSessions),
                b.room(SoftLinks),
            ),
        ),
    ),
    BrokerProtocol(
        soft=(
            SoftStrays,
            lambda b: SoftStrays(
                b.shared,
                b.router,
                b.durable.room(DurableMobility),
                b.room(SoftMobility),
                b.room(SoftSessions),
                b.room(SoftLinks),
            ),
        ),
    ),
    BrokerProtocol(
        (DrainingSet,),
        (DurableDraining, lambda _: DurableDraining()),
        (
            SoftDraining,
            lambda b: SoftDraining(
                b.shared,
                b.durable.room(DurableDraining),
                b.room(Streams),
                b.room(SoftSessions),
                b.room(SoftMobility),
            ),
        ),
    ),
    BrokerProtocol(
        get_args(HostedFact),
        (DurableHosted, lambda d: DurableHosted(d.sessions)),
        (
            SoftHosted,
            lambda b: SoftHosted(
                b.shared,
                b.durable.room(DurableHosted),
                b.room(SoftSessions),
                b.room(SoftMobility),
            ),
        ),
    ),
    BrokerProtocol(
        soft=(
            Membership,
            lambda b: (
                Membership(b.shared, b.durable, b.room(Streams), b.room(SoftLinks))
                if b.is_among_cells
                else None
            ),
        ),
    ),
)


def fact_kinds() -> tuple[type, ...]:
    return tuple(kind for protocol in PROTOCOLS for kind in protocol.facts)
