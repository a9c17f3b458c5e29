"""Restores a broker from its last snapshot and the facts since.

Pure: the caller reads the disk and passes bytes. The same code starts a real broker, takes a
snapshot in the background, reads a folder for inspection, and restarts brokers in the simulator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from motet.broker.core.broker import BrokerCore
from motet.broker.core.durable import Durable
from motet.broker.core.image import parts_of
from motet.broker.core.records import (
    FACT,
    FOUNDED,
    PART,
    Founded,
    decode_fact,
    decode_founded,
    decode_parts,
    encode,
)
from motet.errors import LogCorrupted, MisuseError
from motet.model.coverage import shown_covering
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Fact


class Snapshot(NamedTuple):
    """`version` is that of the machine that made it; the first payload names the broker."""

    version: int
    payloads: Iterable[bytes]


def founding(config: BrokerConfig) -> bytes:
    """The first record of a new journal."""
    return encode(_founded(config, config.neighbours))


def _founded(config: BrokerConfig, neighbours: tuple[str, ...]) -> Founded:
    return Founded(config.name, config.incarnation, neighbours, config.covering, config.root)


def rebuild(
    settings: BrokerConfig | None,
    snapshot: Snapshot | None,
    records: Iterable[tuple[int, bytes]],
) -> Durable:
    """The durable state as it was after the last record.

    The broker's name, incarnation and neighbours come from the journal; the other settings (leases
    etc.) may have changed meanwhile. Without settings, the journal of any broker is accepted.
    """
    left = iter(records)
    if snapshot is not None:
        payloads = iter(snapshot.payloads)
        durable = _born(settings, next(payloads, None))
        durable.restore(decode_parts(snapshot.version, payloads))
    else:
        kind, payload = next(left, (FOUNDED, None))
        if kind != FOUNDED:
            raise LogCorrupted("the journal does not begin with the record that founds it")
        durable = _born(settings, payload)
    durable.replay(_facts(left))
    return durable


Core: TypeAlias = BrokerCore
"""The result of opening a folder; callers need no other part of the composition."""


def core_of(durable: Durable) -> BrokerCore:
    """The broker that continues with this state."""
    config = replace(durable.config, neighbours=tuple(durable.ledgers))
    return BrokerCore(config, durable)


def _born(settings: BrokerConfig | None, payload: bytes | None) -> Durable:
    if payload is None:
        raise LogCorrupted("the journal is empty: even the record that founds it is missing")
    founded = decode_founded(payload)
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


def _facts(records: Iterable[tuple[int, bytes]]) -> Iterator[Fact]:
    for kind, payload in records:
        if kind == FACT:
            yield decode_fact(payload)
        else:
            raise LogCorrupted(f"a record of kind {kind} was found among the facts")


def picture(durable: Durable) -> Iterator[tuple[int, bytes]]:
    """A snapshot of this state, as records."""
    config = durable.config
    yield FOUNDED, encode(_founded(config, tuple(durable.ledgers)))
    for part in parts_of(durable):
        yield PART, encode(part)
