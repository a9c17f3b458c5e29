"""A broker as a machine with a folder: what founds it, and how it is restored from its last
snapshot and the facts since. Pure, like all of `motet.protocol.machine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from motet.broker.core import records
from motet.broker.core.broker import BrokerCore
from motet.broker.core.durable import Durable
from motet.broker.core.image import parts_of
from motet.broker.core.records import Founded, decode_fact, decode_founded, decode_parts, encode
from motet.errors import MisuseError
from motet.model.coverage import shown_covering
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Fact, Reconfigured
from motet.protocol.machine import Machine

Core: TypeAlias = BrokerCore
"""The result of opening a folder; callers need no other part of the composition."""


class BrokerMachine(Machine[BrokerConfig, Durable, BrokerCore]):
    """The broker's name, incarnation and neighbours come from the journal."""

    what = "broker"
    where = "motet.broker.core.rebuild:BROKER"
    journal = "journal"
    snapshot = "snapshot"
    without_folder = (
        "move the folder away and start the broker without it: it joins the overlay as a new "
        "broker, and its clients renew their sessions"
    )

    @property
    def version(self) -> int:
        return records.MACHINE_VERSION

    def founding(self, settings: BrokerConfig) -> bytes:
        return encode(_founded(settings, settings.neighbours))

    def born(self, settings: BrokerConfig | None, founding: bytes) -> Durable:
        return _born(settings, decode_founded(founding))

    def identity(self, state: Durable) -> bytes:
        return encode(_founded(state.config, tuple(state.ledgers)))

    def parts(self, state: Durable) -> Iterator[Struct]:
        return parts_of(state)

    def encode(self, record: Any) -> bytes:
        return encode(record)

    def decode_fact(self, payload: bytes) -> Fact:
        return decode_fact(payload)

    def decode_parts(self, version: int, payloads: Iterable[bytes]) -> Iterator[Struct]:
        return decode_parts(version, payloads)

    def new(self, settings: BrokerConfig) -> BrokerCore:
        return BrokerCore(settings)

    def core_of(self, state: Durable) -> BrokerCore:
        return BrokerCore(replace(state.config, neighbours=tuple(state.ledgers)), state)

    def continues(self, state: Durable, settings: BrokerConfig) -> tuple[BrokerCore, list[Fact]]:
        """The overlay may have changed while the broker was down."""
        core = BrokerCore(state.config, state)
        neighbours = settings.neighbours
        objection = core.objection_to(neighbours)
        if objection is not None:
            raise MisuseError(
                f"{core.config.name} cannot start with the neighbours "
                f"{', '.join(neighbours) or '–'}: {objection.text}; start it with the neighbours "
                "it had before"
            )
        return core, core.step(Reconfigured(neighbours), state.now).persist

    def summary(self, state: Durable, facts: int) -> dict[str, Any]:
        routing, config = state.routing.state, state.config
        return {
            "name": config.name,
            "incarnation": config.incarnation,
            "covering": config.covering,
            "facts": facts,
            "time_s": state.now,
            "sessions": len(state.sessions),
            "clients": len(routing.clients),
            "advertisements": len(routing.advertisements),
            "subscriptions": len(routing.subscriptions),
            "waiting_operations": len(routing.waits),
            "links": {
                name: {
                    "sent": ledger.record.sent,
                    "received": ledger.record.received,
                    "unacknowledged": len(ledger.outbox),
                }
                for name, ledger in state.ledgers.items()
            },
            "digest": state.digest(),
        }


def _founded(config: BrokerConfig, neighbours: tuple[str, ...]) -> Founded:
    return Founded(config.name, config.incarnation, neighbours, config.covering, config.root)


def _born(settings: BrokerConfig | None, founded: Founded) -> Durable:
    if settings is None:
        covering, root = founded.covering, founded.root or ""
        settings = BrokerConfig(founded.name, covering=covering, root=root)
    if founded.name != settings.name:
        raise MisuseError(f"this is the journal of {founded.name}, not of {settings.name}")
    if founded.covering != settings.covering:
        was, now = map(shown_covering, (founded.covering, settings.covering))
        raise MisuseError(
            f"{founded.name} was founded with covering {was} and is now started with it {now}: "
            "covering cannot change while there is state; move the folder away to start without it"
        )
    root = settings.root if founded.root is None else founded.root
    if settings.root not in ("", root):
        was, now = (repr(each) if each else "none" for each in (founded.root, settings.root))
        raise MisuseError(
            f"{founded.name} was founded with the root {was} and is now started with {now}: what "
            "was decided is known to the root, which cannot change while there is state; name the "
            "same one again (root in the topology, or --root), or move the folders away to start "
            "from scratch"
        )
    return Durable(
        replace(
            settings,
            incarnation=founded.incarnation,
            neighbours=founded.neighbours,
            covering=founded.covering,
            root=root,
        )
    )


BROKER: Final = BrokerMachine()

founding = BROKER.founding
rebuild = BROKER.rebuild
picture = BROKER.picture
core_of = BROKER.core_of
