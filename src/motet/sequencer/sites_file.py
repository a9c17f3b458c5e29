"""Files that describe several sites: their line, where they are, and which topics live at each.

    [ordering]
    line = ["S1", "S2"]
    mode = "causal"
    elsewhere = "S1"
    witness = "127.0.0.1:7730"
    [sites.S1]
    listen = "127.0.0.1:7720"
    standby = "127.0.0.1:7725"
    [sites.S2]
    listen = "127.0.0.1:7721"
    topics = ["orders", "prices.*"]

The line begins with the lowest site. A topic lives at the site that lists its name, else at the one
that lists the longest prefix of it, else at `elsewhere`, which is the lowest site by default. Line,
mode and placement are founded with the sites: all sites need the same file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from motet.broker.folder.journal import DURABILITIES, VOLATILE
from motet.broker.overlay.topology import LEGAL_NAME, Wiring, full_address
from motet.errors import AddressError, MisuseError, SitesError
from motet.model.limits import MAX_HEARTBEAT_S, MIN_HEARTBEAT_S
from motet.protocol.sequencing.messages import MAX_TOPIC_CHARS
from motet.runtime.addresses import check_address
from motet.sequencer.config import SiteConfig

SECONDS: Final = ("lease_s", "keep_s", "heartbeat_s", "patience_s")
KEYS: Final = ("line", "mode", "elsewhere", "durability", "witness", *SECONDS)
SITE_KEYS: Final = ("listen", "address", "topics", "standby")
MOST_S: Final = 86_400.0


@dataclass(frozen=True)
class SitePlace:
    """A site: where it listens, and where clients and other sites reach it."""

    listen: str
    address: str
    topics: tuple[str, ...] = ()
    standby: str = ""
    """Where its other replica listens and is reached; empty: it has none."""

    @property
    def addresses(self) -> str:
        return f"{self.address},{self.standby}" if self.standby else self.address


@dataclass(frozen=True)
class Sites:
    """A checked file: for each site of the line its configuration and its wiring."""

    places: Mapping[str, SitePlace]
    """In the sequence of the line."""
    elsewhere: str = ""
    mode: str = ""
    durability: str = DURABILITIES[0]
    seconds: Mapping[str, float] = field(default_factory=dict)
    witness: str = ""
    source: str = "sites"

    @staticmethod
    def load(path: str | Path) -> Sites:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            why = getattr(problem, "strerror", None) or problem
            raise SitesError(f"{path}: cannot be read: {why}") from None
        return Sites.parse(text, str(path))

    @staticmethod
    def parse(text: str, source: str = "sites") -> Sites:
        try:
            return _sites(tomllib.loads(text), source)
        except tomllib.TOMLDecodeError as problem:
            raise SitesError(f"{source}: is not TOML: {problem}") from None
        except MisuseError as problem:
            raise SitesError(f"{source}: {problem}") from None

    def place(self, name: str) -> SitePlace:
        if name not in self.places:
            raise SitesError(f"{self.source}: has no site {name!r}; it has {_listed(self.places)}")
        return self.places[name]

    def config(self, name: str, *, second: bool = False) -> SiteConfig:
        """`second`: of the replica that begins as the standby. Each site dials all lower ones."""
        place = self.place(name)
        if second and not place.standby:
            raise SitesError(f"{self.source}: site {name} has no standby; add sites.{name}.standby")
        placed = [(topic, site) for site, each in self.places.items() for topic in each.topics]
        given: dict[str, Any] = dict(self.seconds)
        if self.mode:
            given["mode"] = self.mode
        names = list(self.places)
        return SiteConfig(
            name,
            tuple(names),
            tuple(placed),
            self.elsewhere,
            addresses={site: each.addresses for site, each in self.places.items()},
            dials={site: self.places[site].addresses for site in names[: names.index(name)]},
            address=place.standby if second else place.address,
            other=place.address if second else place.standby,
            second=second,
            witness=self.witness,
            **given,
        )

    def wiring(self, name: str, *, second: bool = False) -> Wiring:
        place = self.place(name)
        return Wiring(place.standby if second else place.listen)


def _sites(file: dict[str, Any], source: str) -> Sites:
    _known("", file, ("ordering", "sites"))
    ordering, sites = _table("ordering", file), _table("sites", file)
    _known("ordering.", ordering, KEYS)
    line = _names("ordering.line", ordering.get("line"))
    if sorted(line) != sorted(sites):
        raise SitesError(
            f"ordering.line: has {_listed(line)}, and there are tables for {_listed(sites)}; the "
            "line names each site once, lowest first"
        )
    mode, elsewhere = (_text(f"ordering.{key}", ordering.get(key, "")) for key in KEYS[1:3])
    durability = _text("ordering.durability", ordering.get("durability", DURABILITIES[0]))
    if durability not in DURABILITIES:
        raise SitesError(
            f"ordering.durability: is {durability!r}; choose one of {_listed(DURABILITIES)}"
        )
    seconds: dict[str, float] = {
        key: _seconds(key, ordering[key]) for key in SECONDS if key in ordering
    }
    places = {name: _place(name, _table(name, sites, "sites.")) for name in line}
    witness = _reached("ordering.witness", ordering.get("witness", ""))
    if durability == VOLATILE and (witness or any(each.standby for each in places.values())):
        raise SitesError(
            "ordering.durability: is volatile, and a standby or a witness needs what is on disk"
        )
    made = Sites(places, elsewhere, mode, durability, seconds, witness, source)
    _check_addresses(places, witness)
    made.config(line[0]).check()
    return made


def _place(name: str, table: dict[str, Any]) -> SitePlace:
    at = f"sites.{name}"
    if not LEGAL_NAME.fullmatch(name):
        raise SitesError(f"{at}: is not a name; use letters, digits, '-' and '_'")
    _known(f"{at}.", table, SITE_KEYS)
    if "listen" not in table:
        raise SitesError(f"{at}.listen: is missing; add it")
    listen = full_address(_text(f"{at}.listen", table["listen"]))
    address = _reached(
        f"{at}.{'address' if 'address' in table else 'listen'}", table.get("address", listen)
    )
    standby = _reached(f"{at}.standby", table.get("standby", ""))
    topics = _names(f"{at}.topics", table.get("topics", []))
    for topic in topics:
        if not 0 < len(topic) <= MAX_TOPIC_CHARS:
            raise SitesError(f"{at}.topics: {topic!r} has not 1 to {MAX_TOPIC_CHARS} characters")
    return SitePlace(listen, address, topics, standby)


def _reached(key: str, value: Any) -> str:
    """An address at which others reach a process; empty if none is given."""
    if not _text(key, value):
        return ""
    try:
        address = full_address(value)
        check_address(address)
    except AddressError as problem:
        raise SitesError(f"{key}: {problem}") from None
    return address


def _check_addresses(places: Mapping[str, SitePlace], witness: str) -> None:
    taken: dict[str, str] = {}
    for name, place in places.items():
        for address in filter(None, (place.address, place.standby)):
            if address in taken:
                other = taken[address]
                raise SitesError(f"sites.{name}: {address} is taken by {other}; choose another")
            taken[address] = name
    if witness in taken:
        raise SitesError(f"ordering.witness: {witness} is taken by {taken[witness]}")


# ── values ───────────────────────────────────────────────────────────────────────────────


def _known(prefix: str, table: dict[str, Any], keys: tuple[str, ...]) -> None:
    for key in table:
        if key not in keys:
            raise SitesError(f"{prefix}{key}: is not known here; there are {_listed(keys)}")


def _table(key: str, parent: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found = parent.get(key)
    if not isinstance(found, dict):
        raise SitesError(f"{prefix}{key}: is missing; add a table [{prefix}{key}]")
    return found


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SitesError(f"{key}: is {value!r}; give text")
    return value


def _names(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise SitesError(f"{key}: is {value!r}; give a list of names")
    return tuple(value)


def _seconds(key: str, value: Any) -> float:
    least, most = (MIN_HEARTBEAT_S, MAX_HEARTBEAT_S) if key == "heartbeat_s" else (0.1, MOST_S)
    if type(value) not in (int, float) or not least <= value <= most:
        raise SitesError(f"ordering.{key}: is {value!r}; choose from {least:g} to {most:g} seconds")
    return float(value)


def _listed(names: Any) -> str:
    return ", ".join(names) or "none"
