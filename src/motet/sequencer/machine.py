"""A site as a machine with a folder: what founds it, and how it is restored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from motet.errors import AnotherLine, MisuseError
from motet.protocol.contract import Fact
from motet.protocol.machine import Machine
from motet.sequencer import records
from motet.sequencer.config import SiteConfig
from motet.sequencer.core import SiteCore
from motet.sequencer.durable import DurableSite
from motet.sequencer.records import SiteFounded


class SiteMachine(Machine[SiteConfig, DurableSite, SiteCore]):
    """Name, incarnation, line and mode come from the journal. The placement may change while all
    sites are stopped, but for topics that have numbers."""

    what = "site"
    where = "motet.sequencer.machine:SITE"
    journal = "site-journal"
    snapshot = "site-snapshot"
    without_folder = (
        "stop all sites and all clients, move the folders of all sites away, and start anew: then "
        "all numbers begin again"
    )

    @property
    def version(self) -> int:
        return records.MACHINE_VERSION

    def founding(self, settings: SiteConfig) -> bytes:
        return records.encode(records.founded_as(settings))

    def born(self, settings: SiteConfig | None, founding: bytes) -> DurableSite:
        founded = records.decode_founded(founding)
        if settings is None:
            settings = SiteConfig(
                founded.name,
                founded.line,
                founded.placement,
                founded.elsewhere,
                founded.mode,
            )
        _check(founded, settings)
        config = replace(settings, incarnation=founded.incarnation)
        return DurableSite(config, waits=founded.waits)

    def identity(self, state: DurableSite) -> bytes:
        return records.encode(records.founded_as(state.config))

    def parts(self, state: DurableSite) -> Iterator[Struct]:
        return state.parts()

    def encode(self, record: Any) -> bytes:
        return records.encode(record)

    def decode_fact(self, payload: bytes) -> Fact:
        return records.decode_fact(payload)

    def decode_parts(self, version: int, payloads: Iterable[bytes]) -> Iterator[Struct]:
        return records.decode_parts(version, payloads)

    def new(self, settings: SiteConfig) -> SiteCore:
        return SiteCore(settings)

    def core_of(self, state: DurableSite) -> SiteCore:
        return SiteCore(state.config, state)

    def continues(self, state: DurableSite, settings: SiteConfig) -> tuple[SiteCore, list[Fact]]:
        for topic in state.site.ids:
            site = settings.site_of(topic)
            if site != settings.name:
                raise AnotherLine(
                    f"topic {topic!r} has numbers of {settings.name} and is now placed at {site}: "
                    "a topic cannot move while there is state; place it where it was"
                )
        return self.core_of(state), []

    def summary(self, state: DurableSite, facts: int) -> dict[str, Any]:
        config, site = state.config, state.site
        return {
            "name": config.name,
            "incarnation": config.incarnation,
            "line": ", ".join(config.sites),
            "mode": config.mode,
            "facts": facts,
            "time_s": state.now,
            "moment": site.moment,
            "topics": len(site.ids),
            "streams": site.streams,
            "instances": len(site.instances),
            "remembered": len(site.history),
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


def _check(founded: SiteFounded, settings: SiteConfig) -> None:
    if founded.name != settings.name:
        raise MisuseError(f"this is the journal of {founded.name}, not of {settings.name}")
    for what, was, now in (
        ("line", ", ".join(founded.line), ", ".join(settings.sites)),
        ("mode", founded.mode, settings.mode),
    ):
        if was != now:
            raise AnotherLine(
                f"{founded.name} was founded with the {what} {was} and is now started with {now}, "
                f"which would mix up numbers; start it with {was}, or with the folder of another "
                "site"
            )


SITE: Final = SiteMachine()
