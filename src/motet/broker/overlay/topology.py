"""Topology files: the brokers of an overlay and their links.

    [overlay]
    name = "demo"
    [brokers.B1]
    listen = "127.0.0.1:7701"
    [brokers.B2]
    listen = "127.0.0.1:7702"
    links = ["B1"]
    mates = { B2a = "127.0.0.1:7712" }
    [hosted.counter]
    class = "package.module:Class"
    home = "B2"
    [ordering]
    listen = "127.0.0.1:7720"

With `ordering`, the process of the root has a sequencer as well, with an address and a folder of
its own; `ordering = true` at the beginning of the file gives it the usual address.

A broker with mates is a cell: one broker to all others, several processes that carry its streams.
A hosted client runs in a broker's container. It begins at its home, and may move to any broker, or
to those of `brokers`. A link is written once, at the broker that dials. All links together form one
tree; any other file is rejected, and the error names the cycle or the separate parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from motet.broker.folder.journal import DURABILITIES
from motet.broker.folder.retention import DEFAULT, as_table, retention_of
from motet.errors import AddressError, MisuseError, TopologyError, check_options
from motet.model.coverage import RETRACT, Covering
from motet.model.limits import (
    MAX_BROKER_CHARS,
    MAX_CLIENT_ID_CHARS,
    MAX_HEARTBEAT_S,
    MIN_HEARTBEAT_S,
)
from motet.protocol.config import LIVENESS, OUTBOX_BOUND, BrokerConfig
from motet.protocol.delivery.stream import Liveness
from motet.protocol.sequencing.messages import CAUSAL, MODES
from motet.runtime.inproc import name_in
from motet.runtime.pubend.retention import Retention as Retention
from motet.runtime.tcp import address_of, host_and_port

FIRST_PORT = 7701
ORDERING_PORT = 7720
MIN_LEASE_S = 0.001
MAX_LEASE_S = 3600.0
MAX_OUTBOX_BOUND = 100_000_000
MIN_LIVENESS_S = 0.001
MAX_LIVENESS_S = 3600.0
MIN_ORDERING_S = 0.1
MAX_ORDERING_S = 86_400.0
MAX_CLIENTS = 10_000_000
LEGAL_IMPORT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
LEGAL_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_BROKER_CHARS - 1}}}")


@dataclass(frozen=True)
class Wiring:
    """The address of a broker, the neighbours it dials, and its limits for connections."""

    listen: str
    dial: Mapping[str, str] = field(default_factory=dict)
    """Neighbour to address; the other neighbours dial us."""
    hello_s: float = 5.0
    max_backlog_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True)
class BrokerPlace:
    """One broker: its address, and the neighbours it dials."""

    name: str
    listen: str
    links: tuple[str, ...] = ()
    retention: Retention | None = None
    """The broker's own retention, if it differs from that of the overlay."""
    mates: tuple[tuple[str, str], ...] = ()
    """Further processes of its cell, each with the address it listens on."""
    most_clients: int | None = None
    """The most sessions that it has at a time, if that differs from the rest of the overlay."""


@dataclass(frozen=True)
class HostedPlace:
    """A hosted client: the class of its code, and the brokers where it may run."""

    name: str
    path: str
    """Like package.module:Class."""
    home: str
    """The broker where it begins."""
    brokers: tuple[str, ...] = ()
    """Empty: all."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """For its code."""

    def may_run_at(self, broker: str) -> bool:
        return not self.brokers or broker == self.home or broker in self.brokers


@dataclass(frozen=True)
class OrderingPlace:
    """The sequencer in the process of the root: where it listens, and the settings of its site."""

    listen: str = address_of("127.0.0.1", ORDERING_PORT)
    mode: str = CAUSAL
    lease_s: float = 10.0
    keep_s: float = 60.0


class TopologyOptions(TypedDict, total=False):
    """The settings of an overlay, as parameters of functions. Times are seconds."""

    name: str
    covering: Covering
    lease: float
    heartbeat: float
    durability: str
    outbox_bound: int
    retention: Retention
    liveness: Liveness
    root: str
    most_clients: int
    authorise: str
    ordering: bool | OrderingPlace


TIMES = ("lease", "heartbeat")


def settings_in(options: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Options by the names of the fields of a `Topology`, which are those of its file: there, times
    have their unit in their names."""
    check_options(options, known)
    if type(options.get("ordering")) is bool:
        options = {**options, "ordering": OrderingPlace() if options["ordering"] else None}
    return {f"{name}_s" if name in TIMES else name: value for name, value in options.items()}


@dataclass(frozen=True)
class Topology:
    """A checked overlay: exactly one tree. Its fields have the names of the file's keys. `source`
    is that file, for error messages."""

    name: str
    brokers: tuple[BrokerPlace, ...]
    covering: Covering = False
    """Whether a filter is forwarded only where no wider one is; with "retract", a wider filter also
    takes back those that it covers."""
    lease_s: float = 30.0
    heartbeat_s: float = 2.0
    durability: str = DURABILITIES[0]
    outbox_bound: int = OUTBOX_BOUND
    retention: Retention = DEFAULT
    source: str = field(default="topology", compare=False)
    liveness: Liveness = LIVENESS
    root: str = ""
    """The broker that decides transactions; by default the first one."""
    most_clients: int = 0
    """The most sessions that a broker has at a time; 0: any number."""
    authorise: str = ""
    """The rule for clients, a function of the operator's own as `module:function`."""
    hosted: tuple[HostedPlace, ...] = ()
    ordering: OrderingPlace | None = None

    def __post_init__(self) -> None:
        _check(self)

    # ── construction ─────────────────────────────────────────────────────────────────────

    @staticmethod
    def load(path: str | Path) -> Topology:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            why = getattr(problem, "strerror", None) or problem
            raise TopologyError(f"{path}: cannot be read: {why}") from None
        return Topology.parse(text, str(path))

    @staticmethod
    def parse(text: str, source: str = "topology") -> Topology:
        from motet.broker.overlay.topology_file import (
            read,  # pydantic is slow to import and rarely needed
        )

        file = read(text, source)
        overlay = file.overlay
        kept = _retention("overlay", overlay.retention, DEFAULT, source)
        places = tuple(
            BrokerPlace(
                name,
                full_address(place.listen),
                tuple(place.links),
                _retention(f"brokers.{name}", place.retention, kept, source)
                if place.retention
                else None,
                tuple((mate, full_address(at)) for mate, at in place.mates.items()),
                place.most_clients,
            )
            for name, place in file.brokers.items()
        )
        return Topology(
            overlay.name,
            places,
            overlay.covering,
            overlay.lease_s,
            overlay.heartbeat_s,
            overlay.durability,
            overlay.outbox_bound,
            kept,
            source,
            Liveness(**file.liveness.model_dump()),
            overlay.root,
            overlay.most_clients,
            overlay.authorise,
            tuple(
                HostedPlace(name, each.path, each.home, tuple(each.brokers), each.options)
                for name, each in file.hosted.items()
            ),
            _ordering(file.ordering),
        )

    @staticmethod
    def default(brokers: int = 3) -> Topology:
        return Topology.line(brokers)

    @staticmethod
    def line(brokers: int, **options: Unpack[TopologyOptions]) -> Topology:
        """B1 – B2 – B3 – …"""
        return _grown("line", brokers, lambda i: i - 1, options)

    @staticmethod
    def star(brokers: int, **options: Unpack[TopologyOptions]) -> Topology:
        """B1 in the middle."""
        return _grown("star", brokers, lambda _: 0, options)

    @staticmethod
    def tree(brokers: int, fanout: int = 2, **options: Unpack[TopologyOptions]) -> Topology:
        """B1 at the root, every broker with up to `fanout` below it."""
        if fanout < 1:
            raise TopologyError(f"a tree needs a fanout of at least 1, not {fanout}")
        return _grown("tree", brokers, lambda i: (i - 1) // fanout, options)

    # ── queries ──────────────────────────────────────────────────────────────────────────

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(place.name for place in self.brokers)

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """Every link once, the dialler first."""
        return tuple((place.name, other) for place in self.brokers for other in place.links)

    def place(self, name: str) -> BrokerPlace:
        for place in self.brokers:
            if place.name == name:
                return place
        known = ", ".join(self.names)
        raise TopologyError(f"{self.source}: has no broker {name!r}; it has {known}")

    def neighbours(self, name: str) -> tuple[str, ...]:
        """The neighbours in both directions, in the order of the file."""
        dialled = set(self.place(name).links)
        diallers = {place.name for place in self.brokers if name in place.links}
        return tuple(other for other in self.names if other in dialled | diallers)

    @property
    def processes(self) -> tuple[BrokerPlace, ...]:
        """All processes: brokers, each followed by its mates."""
        return tuple(
            each
            for place in self.brokers
            for each in (place, *(BrokerPlace(mate, at) for mate, at in place.mates))
        )

    def head(self, name: str) -> str:
        """The broker whose cell a process belongs to."""
        for place in self.brokers:
            if name == place.name or name in dict(place.mates):
                return place.name
        return self.place(name).name  # raises that there is none

    def config(self, name: str) -> BrokerConfig:
        head = self.head(name)
        near = self.neighbours(head)
        mates = {place.name: tuple(dict(place.mates)) for place in self.brokers if place.mates}
        return BrokerConfig(
            name,
            near,
            covering=self.covering,
            lease_s=self.lease_s,
            heartbeat_s=self.heartbeat_s,
            outbox_bound=self.outbox_bound,
            liveness=self.liveness,
            root=self.decider,
            most_clients=self._most_clients(head),
            authorise=self.authorise,
            head="" if head == name else head,
            head_at="" if head == name else self.place(head).listen,
            mates=mates.get(head, ()),
            cells={other: mates[other] for other in near if other in mates},
        )

    @property
    def decider(self) -> str:
        """The broker that decides transactions; none if there are cells or covering is on."""
        if self.covering or any(place.mates for place in self.brokers):
            return ""
        return self.root or self.brokers[0].name

    @property
    def ordering_host(self) -> str:
        """The broker whose process has the sequencer; none without one."""
        return "" if self.ordering is None else self.root or self.brokers[0].name

    def _most_clients(self, name: str) -> int:
        own = self.place(name).most_clients
        return self.most_clients if own is None else own

    def retention_of(self, name: str) -> Retention:
        """How long a broker keeps the events that are published there."""
        return self.place(self.head(name)).retention or self.retention

    def wiring(self, name: str) -> Wiring:
        """Every member of a cell dials every member of the cells that it is linked to, and the
        members of its own cell that are listed before it."""
        place = self.place(self.head(name))
        dial: dict[str, str] = {}
        for other in place.links:
            called = self.place(other)
            dial |= {other: called.listen} | dict(called.mates)
        listen = place.listen
        if name != place.name:
            family = ((place.name, place.listen), *place.mates)
            at = [member for member, _ in family].index(name)
            dial = dict(family[:at]) | dial
            listen = family[at][1]
        return Wiring(listen, dial)

    def to_toml(self) -> str:
        """A file that parses to an equal topology."""
        lines = [
            "[overlay]",
            f'name = "{self.name}"',
            f"covering = {_shown(self.covering)}",
            f"lease_s = {self.lease_s!r}",
            f"heartbeat_s = {self.heartbeat_s!r}",
            f'durability = "{self.durability}"',
            f"outbox_bound = {self.outbox_bound}",
            *([f'root = "{self.root}"'] if self.root else []),
            *([f"most_clients = {self.most_clients}"] if self.most_clients else []),
            *([f'authorise = "{self.authorise}"'] if self.authorise else []),
            f"retention = {as_table(self.retention)}",
        ]
        if self.liveness != LIVENESS:
            lines += ["", "[liveness]"]
            lines += [f"{name} = {seconds!r}" for name, seconds in self.liveness._asdict().items()]
        for place in self.brokers:
            lines += ["", f"[brokers.{place.name}]", f'listen = "{place.listen}"']
            if place.links:
                links = ", ".join(f'"{link}"' for link in place.links)
                lines.append(f"links = [{links}]")
            if place.mates:
                mates = ", ".join(f'{mate} = "{at}"' for mate, at in place.mates)
                lines.append(f"mates = {{ {mates} }}")
            if place.retention is not None:
                lines.append(f"retention = {as_table(place.retention)}")
            if place.most_clients is not None:
                lines.append(f"most_clients = {place.most_clients}")
        if self.ordering is not None:
            lines += ["", "[ordering]", f'listen = "{self.ordering.listen}"']
            lines += [f'mode = "{self.ordering.mode}"', f"lease_s = {self.ordering.lease_s!r}"]
            lines.append(f"keep_s = {self.ordering.keep_s!r}")
        for hosted in self.hosted:
            lines += ["", f"[hosted.{_key(hosted.name)}]", f"class = {_toml(hosted.path)}"]
            lines.append(f"home = {_toml(hosted.home)}")
            if hosted.brokers:
                lines.append(f"brokers = {_toml(list(hosted.brokers))}")
            if hosted.options:
                lines.append(f"options = {_toml(hosted.options)}")
        return "\n".join(lines) + "\n"


def _shown(covering: Covering) -> str:
    return f'"{covering}"' if covering == RETRACT else str(covering).lower()


def _retention(key: str, table: Any, base: Retention, source: str) -> Retention:
    try:
        return retention_of(table, base)
    except MisuseError as problem:
        raise TopologyError(f"{source}: {key}.retention: {problem}") from None


def _ordering(given: Any) -> OrderingPlace | None:
    if isinstance(given, bool):
        return OrderingPlace() if given else None
    place = OrderingPlace(mode=given.mode, lease_s=given.lease_s, keep_s=given.keep_s)
    return place if given.listen is None else replace(place, listen=full_address(given.listen))


def _key(name: str) -> str:
    return name if LEGAL_NAME.fullmatch(name) else _toml(name)


def _toml(value: Any) -> str:
    """A value as it is written in a file."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(name)} = {_toml(each)}" for name, each in value.items())
        return f"{{ {pairs} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def full_address(short: str) -> str:
    """`host:port` means TCP."""
    return short if "://" in short else f"motet://{short}"


def _grown(shape: str, brokers: int, parent: Any, options: TopologyOptions) -> Topology:
    settings = settings_in(options, TopologyOptions.__annotations__)
    if brokers < 1:
        raise TopologyError(f"an overlay needs at least one broker, not {brokers}")
    places = tuple(
        BrokerPlace(
            f"B{i + 1}",
            address_of("127.0.0.1", FIRST_PORT + i),
            (f"B{parent(i) + 1}",) if i else (),
        )
        for i in range(brokers)
    )
    return Topology(**{"name": shape, "brokers": places} | settings)


# ── checks ───────────────────────────────────────────────────────────────────────────────


def _check(topology: Topology) -> None:
    def refuse(key: str, problem: str) -> TopologyError:
        return TopologyError(f"{topology.source}: {key}: {problem}")

    if not topology.brokers:
        raise refuse("brokers", "there is none; add a table [brokers.B1] with its listen address")
    for key, value, kind, words in (
        ("overlay.name", topology.name, str, "text"),
        ("overlay.durability", topology.durability, str, "text"),
        ("overlay.retention", topology.retention, Retention, "a Retention"),
        ("liveness", topology.liveness, Liveness, "a Liveness"),
        ("overlay.root", topology.root, str, "text"),
        ("overlay.authorise", topology.authorise, str, "text"),
    ):
        if not isinstance(value, kind):
            raise refuse(key, f"is {value!r}; give {words}")
    if topology.covering not in (False, True, RETRACT) or type(topology.covering) is int:
        raise refuse("overlay.covering", f"is {topology.covering!r}; give true, false or 'retract'")
    if not LEGAL_NAME.fullmatch(topology.name):
        raise refuse("overlay.name", f"{topology.name!r} is not a name; use letters and digits")
    for key, seconds, least, most in (
        ("overlay.lease_s", topology.lease_s, MIN_LEASE_S, MAX_LEASE_S),
        ("overlay.heartbeat_s", topology.heartbeat_s, MIN_HEARTBEAT_S, MAX_HEARTBEAT_S),
    ):
        if type(seconds) not in (int, float) or not least <= seconds <= most:
            raise refuse(key, f"is {seconds!r}; choose from {least:g} to {most:g} seconds")
    bound = topology.outbox_bound
    if type(bound) is not int or not 1 <= bound <= MAX_OUTBOX_BOUND:
        raise refuse(
            "overlay.outbox_bound", f"is {bound!r}; choose from 1 to {MAX_OUTBOX_BOUND} messages"
        )
    _check_admission(topology, refuse)
    if topology.durability not in DURABILITIES:
        ways = ", ".join(DURABILITIES)
        raise refuse("overlay.durability", f"is {topology.durability!r}; choose one of {ways}")
    _check_liveness(topology.liveness, refuse)
    if topology.root and topology.root not in {place.name for place in topology.brokers}:
        raise refuse("overlay.root", f"is {topology.root!r}, and no broker has that name")
    names: set[str] = set()
    taken: dict[str, str] = {}
    if topology.covering and any(place.mates for place in topology.brokers):
        raise refuse("overlay.covering", "is on, but mates carry streams, which need it off")
    for place in topology.processes:
        key = f"brokers.{place.name}"
        if not LEGAL_NAME.fullmatch(place.name):
            raise refuse(key, "is not a name; use up to 64 letters, digits, '-' and '_'")
        if place.name in names:
            raise refuse(key, "is there twice; rename one of them")
        names.add(place.name)
        try:
            address = _checked_address(place.listen)
        except AddressError as problem:
            raise refuse(f"{key}.listen", str(problem)) from None
        if address in taken:
            raise refuse(f"{key}.listen", f"{address} is taken by {taken[address]}; choose another")
        taken[address] = place.name
    _check_ordering(topology, taken, refuse)
    _check_links(topology, names, refuse)
    _check_tree(topology, refuse)
    _check_hosted(topology, refuse)


def _check_ordering(topology: Topology, taken: Mapping[str, str], refuse: Any) -> None:
    place = topology.ordering
    if place is None:
        return
    if not isinstance(place, OrderingPlace):
        raise refuse("ordering", f"is {place!r}; give true, false or an OrderingPlace")
    try:
        address = _checked_address(place.listen)
    except AddressError as problem:
        raise refuse("ordering.listen", str(problem)) from None
    if address in taken:
        raise refuse("ordering.listen", f"{address} is taken by {taken[address]}; choose another")
    if place.mode not in MODES:
        raise refuse("ordering.mode", f"is {place.mode!r}; choose one of {', '.join(MODES)}")
    for key, seconds in (("lease_s", place.lease_s), ("keep_s", place.keep_s)):
        if type(seconds) not in (int, float) or not MIN_ORDERING_S <= seconds <= MAX_ORDERING_S:
            text = f"is {seconds!r}; choose from {MIN_ORDERING_S:g} to {MAX_ORDERING_S:g} seconds"
            raise refuse(f"ordering.{key}", text)


def _check_hosted(topology: Topology, refuse: Any) -> None:
    names: set[str] = set()
    for each in topology.hosted:
        key = f"hosted.{each.name}"
        if topology.covering:
            raise refuse(key, "needs exactly-once delivery, which needs overlay.covering off")
        if not 0 < len(each.name) <= MAX_CLIENT_ID_CHARS or not each.name.isprintable():
            text = f"is no client id; use 1 to {MAX_CLIENT_ID_CHARS} printable characters"
            raise refuse(key, text)
        if each.name in names:
            raise refuse(key, "is there twice; rename one of them")
        names.add(each.name)
        if not LEGAL_IMPORT.fullmatch(each.path):
            raise refuse(f"{key}.class", f"is {each.path!r}; write it like package.module:Class")
        for broker in (each.home, *each.brokers):
            if broker not in topology.names:
                known = ", ".join(topology.names)
                raise refuse(key, f"there is no broker {broker!r}; known are {known}")


def _check_admission(topology: Topology, refuse: Any) -> None:
    limits = {f"brokers.{each.name}": each.most_clients for each in topology.brokers}
    for key, most in {"overlay": topology.most_clients, **limits}.items():
        if most is not None and (type(most) is not int or not 0 <= most <= MAX_CLIENTS):
            why = f"is {most!r}; choose from 0 (any number) to {MAX_CLIENTS}"
            raise refuse(f"{key}.most_clients", why)
    if topology.authorise and not LEGAL_IMPORT.fullmatch(topology.authorise):
        raise refuse("overlay.authorise", f"is {topology.authorise!r}; write module:function")


def _check_liveness(liveness: Liveness, refuse: Any) -> None:
    least, most = MIN_LIVENESS_S, MAX_LIVENESS_S
    for name, seconds in liveness._asdict().items():
        never = name == "delay_s" and seconds == float("inf")
        if type(seconds) not in (int, float) or not (never or least <= seconds <= most):
            other = ", or inf for never" if name == "delay_s" else ""
            text = f"is {seconds!r}; choose from {least:g} to {most:g} seconds{other}"
            raise refuse(f"liveness.{name}", text)
    if liveness.nack_repeat_most_s < liveness.nack_repeat_s:
        text = f"is {liveness.nack_repeat_most_s!r}; choose at least nack_repeat_s"
        raise refuse("liveness.nack_repeat_most_s", text)


def _checked_address(address: str) -> str:
    if address.startswith("inproc://"):
        return f"inproc://{name_in(address)}"
    host, port = host_and_port(address)
    if port == 0:
        raise AddressError("port 0 cannot be dialled by the neighbours; choose one")
    return address_of(host, port)


def _check_links(topology: Topology, names: set[str], refuse: Any) -> None:
    seen: dict[frozenset[str], str] = {}
    for place in topology.brokers:
        key = f"brokers.{place.name}.links"
        for other in place.links:
            if other not in names:
                known = ", ".join(topology.names)
                raise refuse(key, f"there is no broker {other!r}; known are {known}")
            if other == place.name:
                raise refuse(key, f"{other} is linked to itself; remove that")
            edge = frozenset((place.name, other))
            if edge in seen:
                raise refuse(
                    key,
                    f"the link {place.name}–{other} is already written at {seen[edge]}; "
                    "keep it at one of them, the one that dials",
                )
            seen[edge] = place.name


def _check_tree(topology: Topology, refuse: Any) -> None:
    near: dict[str, list[str]] = {name: [] for name in topology.names}
    for dialler, other in topology.edges:
        way = _way(near, dialler, other)
        if way:
            cycle = " – ".join((*way, dialler))
            raise refuse(
                f"brokers.{dialler}.links", f"closes the cycle {cycle}; remove one of its links"
            )
        near[dialler].append(other)
        near[other].append(dialler)
    parts = _parts(near)
    if len(parts) > 1:
        shown = " and ".join("{" + ", ".join(part) + "}" for part in parts)
        raise refuse("brokers", f"the overlay falls into parts: {shown}; link them to one tree")


def _way(near: dict[str, list[str]], start: str, end: str) -> Sequence[str]:
    """The path from start to end, both included; empty if there is none."""
    came_from: dict[str, str | None] = {start: None}
    frontier = [start]
    while frontier and end not in came_from:
        found = [(here, there) for here in frontier for there in near[here]]
        frontier = []
        for here, there in found:
            if there not in came_from:
                came_from[there] = here
                frontier.append(there)
    if end not in came_from:
        return ()
    way: list[str] = []
    step: str | None = end
    while step is not None:
        way.append(step)
        step = came_from[step]
    return way[::-1]


def _parts(near: dict[str, list[str]]) -> list[list[str]]:
    parts: list[list[str]] = []
    left: Iterable[str] = list(near)
    while left:
        start = next(iter(left))
        part = [name for name in left if name == start or _way(near, start, name)]
        parts.append(part)
        left = [name for name in left if name not in part]
    return parts
