"""Durable state of routing: three tables and the obligations that wait for echoes.

Hops have bit numbers, so that sets of hops are integers. Neighbours get one when they are
configured, clients of this broker while they have entries; `all_neighbours` distinguishes the two,
not the order of the numbers.
"""

from __future__ import annotations

from collections.abc import (
    Collection,
    ItemsView,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import contextmanager
from typing import Any, Protocol

from msgspec import Struct

from motet.errors import InvariantError
from motet.matching import FilterIndex, create_index
from motet.model import Filter, Hop, OpId, Value
from motet.model.ids import issuer_of, newest
from motet.protocol.routing.messages import ClientHere


class Entry(Struct):
    """One advertisement or subscription at one broker. `sent` has the bits of the neighbours that
    were told about it; only they are told of its removal."""

    id: OpId
    filter: Filter
    source: Hop
    key: int
    sent: int = 0
    start: int = 0
    """Of a subscription: our own pubend owes it the events above this tick."""
    tx: str = ""
    """The transaction that it is part of, while undecided."""
    ended: bool = False
    """Of a subscription: a transaction has ended it; it stays while events are owed to it."""
    version: int = 0
    """Version of the tables when it came into force."""
    ended_at: int = 0
    """Version of the tables when it ended."""
    end: int = 0
    """Its last tick in our own pubend, once that has cut."""
    home: str = ""
    """Of an advertisement: the broker of its publisher, which has the log of its events."""


class Wait(Struct):
    """`requester` waits until the `missing` neighbours have echoed. `probe` is the filter of an
    operation that is not installed here because another covers it."""

    op: OpId
    what: str
    requester: Hop
    missing: int
    probe: Filter | None = None
    target: OpId | None = None
    """The entry that a removal removes."""
    retired: bool = False
    """A removal that waits for earlier events to arrive, or spent most of its timeout on that: if
    it times out, the error is `StillOwed`."""


REMOVALS = ("unsubscribe", "unadvertise")
"""Removals that somebody has asked for. A broker removes what a neighbour does not need any more by
`WITHDRAW`, a wait of its own."""
WITHDRAW = "withdraw"
PROBES = ("restore", "reassure")
"""Waits of our own: until they are over, the routes are not known for certain."""
RECHECK = "recheck"
"""A wait of our own: a neighbour is asked again for the echo of its target, a subscription."""


ARRIVAL = "arrival"
"""A wait of our own: a client that publishes has moved here."""
HERE = Hop("pubend", "")
"""The hop of our own pubend."""


class Waits(dict[OpId, Wait]):
    """Counts its probes, because every event checks for them."""

    def __init__(self) -> None:
        super().__init__()
        self.probes = 0
        self.rechecks: dict[OpId, dict[OpId, None]] = {}
        """By target."""
        self.removals: dict[OpId, dict[OpId, None]] = {}
        """By target: all of it that are not complete."""

    def __setitem__(self, op: OpId, wait: Wait) -> None:
        self.pop(op, None)
        super().__setitem__(op, wait)
        self.probes += wait.what in PROBES
        index = self._index(wait)
        if index is not None and wait.target is not None:
            index.setdefault(wait.target, {})[op] = None

    def __delitem__(self, op: OpId) -> None:
        wait = self[op]
        self.probes -= wait.what in PROBES
        index = self._index(wait)
        if index is not None and wait.target is not None:
            del index[wait.target][op]
            if not index[wait.target]:
                del index[wait.target]
        super().__delitem__(op)

    def _index(self, wait: Wait) -> dict[OpId, dict[OpId, None]] | None:
        if wait.what == RECHECK:
            return self.rechecks
        return self.removals if wait.what in (*REMOVALS, WITHDRAW) else None

    def rechecked(self, op: OpId, bit: int) -> bool:
        """Whether this neighbour was asked again for the echo of an operation."""
        return any(self[each].missing & bit for each in self.rechecks.get(op, ()))

    def pop(self, op: OpId, default: Any = None) -> Any:
        if op not in self:
            return default
        found = self[op]
        del self[op]
        return found


class HopBits:
    """Assigns bits to hops."""

    def __init__(self, neighbours: Sequence[str]) -> None:
        self.slots: list[Hop | None] = []
        self.numbers: dict[Hop, int] = {}
        self.free: list[int] = []
        self.all_neighbours = 0
        self.neighbours: tuple[str, ...] = ()
        """In the order of their bits."""
        for name in sorted(neighbours):
            self.admit(name)

    def admit(self, neighbour: str) -> None:
        """A broker becomes a neighbour."""
        self._name(self.all_neighbours | 1 << self._take(Hop.broker(neighbour)))

    def dismiss(self, neighbour: str) -> None:
        """A broker is no longer a neighbour; no state may refer to its bit."""
        hop = Hop.broker(neighbour)
        self._name(self.all_neighbours & ~self.bit(hop))
        self.release(hop)

    def _name(self, all_neighbours: int) -> None:
        self.all_neighbours = all_neighbours
        self.neighbours = tuple(self.names(all_neighbours))

    def number(self, hop: Hop) -> int:
        """The bit number of a hop; a new client gets one."""
        found = self.numbers.get(hop)
        if found is not None:
            return found
        if hop.is_broker:
            raise InvariantError(f"{hop} is not a neighbour of this broker")
        return self._take(hop)

    def _take(self, hop: Hop) -> int:
        if self.free:
            number = self.free.pop()
            self.slots[number] = hop
        else:
            number = len(self.slots)
            self.slots.append(hop)
        self.numbers[hop] = number
        return number

    def bit(self, hop: Hop) -> int:
        """The bit of a hop; 0 if it has no entries and therefore no bit."""
        number = self.numbers.get(hop)
        return 0 if number is None else 1 << number

    def release(self, hop: Hop) -> None:
        number = self.numbers.pop(hop, None)
        if number is not None:
            self.slots[number] = None
            self.free.append(number)

    def hops(self, mask: int) -> Iterator[Hop]:
        while mask:
            low = mask & -mask
            hop = self.slots[low.bit_length() - 1]
            if hop is None:
                raise InvariantError("a routing table names a hop that left")
            yield hop
            mask ^= low

    def restore(
        self, slots: Sequence[Hop | None], free: Sequence[int], all_neighbours: int
    ) -> None:
        """Restore the state of a snapshot."""
        self.slots, self.free = list(slots), list(free)
        self.numbers = {hop: number for number, hop in enumerate(slots) if hop}
        self._name(all_neighbours)

    def names(self, mask: int) -> list[str]:
        return [hop.name for hop in self.hops(mask)] if mask else []


class EntryMarks(Protocol):
    """What transactions record about entries: those of an undecided transaction or ended by one,
    and those that wait for a cut of our pubend. Routing reports added and removed entries."""

    @property
    def undecided(self) -> Collection[OpId]: ...
    @property
    def unsettled(self) -> Collection[OpId]: ...
    @property
    def uncut(self) -> Collection[OpId]: ...
    @property
    def unended(self) -> Collection[OpId]: ...

    def watch(self, entry: Entry) -> None: ...
    def unwatch(self, op: OpId) -> None: ...
    def subscribed(self, entry: Entry) -> None: ...
    def unsubscribed(self, entry: Entry) -> None: ...


NO_OVERLAP: tuple[Filter | None, int] = (None, 0)


class Table:
    """Entries with an index over their filters: the SRT over advertisements, the PRT over
    subscriptions. Listing order is the order of arrival."""

    def __init__(self, bits: HopBits) -> None:
        self._bits = bits
        self.entries: dict[OpId, Entry] = {}
        self._by_key: dict[int, Entry] = {}
        self._by_source: dict[Hop, dict[OpId, Entry]] = {}
        self.next_key = 0
        self.index: FilterIndex = create_index()
        self._put_off: dict[int, Entry] | None = None
        """While `catching_up`: entries that are not in the index yet."""
        self._overlap: tuple[Filter | None, int] = NO_OVERLAP
        """The last answer of `overlapping_hops`, until an entry is added or removed: the same
        filter is looked up several times in a row."""

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def __contains__(self, op: OpId) -> bool:
        return op in self.entries

    def get(self, op: OpId) -> Entry | None:
        return self.entries.get(op)

    def entry(self, key: int) -> Entry:
        return self._by_key[key]

    def from_source(self, source: Hop) -> list[Entry]:
        return list(self._by_source.get(source, {}).values())

    def count(self, source: Hop) -> int:
        return len(self._by_source.get(source, ()))

    def add(
        self,
        op: OpId,
        filter: Filter,
        source: Hop,
        tx: str = "",
        ended: bool = False,
        home: str = "",
    ) -> Entry:
        entry = Entry(op, filter, source, self.next_key, tx=tx, ended=ended, home=home)
        self.next_key += 1
        self.restore(entry)
        return entry

    def restore(self, entry: Entry) -> None:
        """Insert an entry that already has its key."""
        self._overlap = NO_OVERLAP
        number = self._bits.number(entry.source)
        if self._put_off is None:
            self.index.add(entry.key, entry.filter, number)
        else:
            self._put_off[entry.key] = entry
        self.entries[entry.id] = entry
        self._by_key[entry.key] = entry
        self._by_source.setdefault(entry.source, {})[entry.id] = entry

    def turn(self, entry: Entry, source: Hop) -> None:
        """The entry comes from another hop; it moves to the end of the list."""
        self.remove(entry)
        entry.source = source
        self.restore(entry)

    def remove(self, entry: Entry) -> None:
        self._overlap = NO_OVERLAP
        if self._put_off is None or self._put_off.pop(entry.key, None) is None:
            self.index.remove(entry.key)
        del self.entries[entry.id]
        del self._by_key[entry.key]
        siblings = self._by_source[entry.source]
        del siblings[entry.id]
        if not siblings:
            del self._by_source[entry.source]

    @contextmanager
    def catching_up(self) -> Iterator[None]:
        """For replays: most entries of a journal are gone at its end, so none is indexed before the
        first lookup or the end."""
        self._put_off = {}
        try:
            yield
            self._complete_index()
        finally:
            self._put_off = None

    def _complete_index(self) -> FilterIndex:
        if self._put_off:
            for entry in self._put_off.values():
                self.index.add(entry.key, entry.filter, self._bits.number(entry.source))
            self._put_off.clear()
        return self.index

    def matching(self, attributes: Mapping[str, Value]) -> list[Entry]:
        """The entries that an event matches, in the order of arrival."""
        return [self._by_key[key] for key in sorted(self._complete_index().match(attributes))]

    def overlapping(self, filter: Filter) -> list[Entry]:
        return [self._by_key[key] for key in self._complete_index().overlapping(filter)]

    def overlapping_hops(self, filter: Filter) -> int:
        if not self.entries:
            return 0
        known, hops = self._overlap
        if known is not filter:
            hops = self._complete_index().overlapping_hops(filter)
            self._overlap = (filter, hops)
        return hops

    def hops_encoded(self, body: bytes) -> int:
        """The hops whose filters an encoded event matches; 0 if the body is malformed."""
        return self._complete_index().hops_encoded(body) or 0 if self.entries else 0

    def covering(self, filter: Filter) -> list[Entry]:
        return [self._by_key[key] for key in self._complete_index().covering(filter)]

    def covered(self, filter: Filter) -> list[Entry]:
        return [self._by_key[key] for key in self._complete_index().covered(filter)]


def announced_home(epoch: str) -> str:
    """The home of a session according to its epoch, which names the broker that announced it. Only
    this function derives it from the epoch; all other code looks it up."""
    return issuer_of(epoch)


class ClientTable(MutableMapping[tuple[str, str], Hop]):
    """The CRT: the direction and the home of each session, by client and epoch, in the order in
    which we heard of them. A client has several only until every broker has heard of the newest."""

    def __init__(self) -> None:
        self._hops: dict[tuple[str, str], Hop] = {}
        self._homes: dict[tuple[str, str], str] = {}
        self._epochs: dict[str, tuple[str, ...]] = {}
        self.durable: dict[tuple[str, str], None] = {}
        """The durable sessions."""
        self.merging: dict[tuple[str, str], None] = {}
        """The sessions that may be in total order."""

    def hear(self, message: ClientHere, hop: Hop) -> None:
        key = (message.client, message.epoch)
        self[key] = hop
        if message.durable:
            self.durable[key] = None
        if message.plain:
            self.merging.pop(key, None)

    def as_told(self, client: str, epoch: str) -> ClientHere:
        key = (client, epoch)
        return ClientHere(client, epoch, key in self.durable, key not in self.merging)

    def plain(self) -> Iterator[tuple[str, str]]:
        """The sessions that are not in total order."""
        return (key for key in self._hops if key not in self.merging)

    def newest(self, client: str) -> str | None:
        epochs = self._epochs.get(client)
        return newest(epochs) if epochs else None

    def home(self, client: str) -> str | None:
        """The broker that a client is connected to; None if it has no session."""
        epoch = self.newest(client)
        return self._homes[client, epoch] if epoch else None

    def home_of(self, client: str, epoch: str) -> str:
        """The broker of one session; if unknown here, the broker that announced it."""
        return self._homes.get((client, epoch)) or announced_home(epoch)

    def set_home(self, client: str, epoch: str, home: str) -> None:
        if (client, epoch) in self._hops:
            self._homes[client, epoch] = home

    def moved(self) -> dict[tuple[str, str], str]:
        """The homes of sessions that have moved away from the broker that announced them."""
        return {key: home for key, home in self._homes.items() if home != announced_home(key[1])}

    def __getitem__(self, key: tuple[str, str]) -> Hop:
        return self._hops[key]

    def __setitem__(self, key: tuple[str, str], hop: Hop) -> None:
        if key not in self._hops:
            client, epoch = key
            self._epochs[client] = (*self._epochs.get(client, ()), epoch)
            self._homes[key] = announced_home(epoch)
            self.merging[key] = None
        self._hops[key] = hop

    def __delitem__(self, key: tuple[str, str]) -> None:
        del self._hops[key], self._homes[key]
        self.durable.pop(key, None)
        self.merging.pop(key, None)
        client, epoch = key
        left = tuple(other for other in self._epochs[client] if other != epoch)
        if left:
            self._epochs[client] = left
        else:
            del self._epochs[client]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._hops)

    def __len__(self) -> int:
        return len(self._hops)

    def items(self) -> ItemsView[tuple[str, str], Hop]:
        return self._hops.items()


class RoutingState:
    """The tables of one broker. They change only while a journaled fact is applied: in methods of
    `Routing` and its parts, which other protocols may call; and in the `Marks` of transactions,
    which set `tx`, `version`, `ended` and `ended_at` of an entry."""

    def __init__(self, neighbours: Sequence[str]) -> None:
        self.bits = HopBits(neighbours)
        self.advertisements = Table(self.bits)
        self.subscriptions = Table(self.bits)
        self.clients = ClientTable()
        self.waits = Waits()
        self.paths: dict[str, tuple[str, ...]] = {}
        """By pubend, the brokers on the way to it, without ourselves."""
        self.pubends: dict[str, Hop] = {}
        """The direction of each pubend's log."""
        self.hosted = ""
        """Our own pubend."""
        self.told_homes: dict[OpId, str] = {}
        """Homes of advertisements that are about to arrive; see `Rehome`."""
        self.retired: dict[OpId, OpId | None] = {}
        """Advertisements that are closed to new events, but stay until all earlier ones have
        arrived; each with the request that waits for its end, if any."""
        self.removals = 0
        """Counts the removals that no client asked for, to give each its own name."""
        self.met = 0
        """Neighbours whose link is established: they have received a full transfer."""
        self.complete = 0
        """Neighbours that have reported everything that lies behind them."""
        self.declared = 0
        """Neighbours to which we have declared the same."""

    @property
    def unsure(self) -> bool:
        """Some broker has lost its state, or is new, and it is not known yet which events are
        wanted there, or from there."""
        return bool(self.waits.probes or self.bits.all_neighbours & ~self.complete)

    def missing(self, wait: Wait) -> int:
        """The neighbours that keep an operation waiting."""
        mask = wait.missing
        for _, others in self.ahead(wait):
            mask |= others
        return mask

    def ahead(self, wait: Wait) -> Iterator[tuple[OpId, int]]:
        """The other removals of the same entry that a removal waits for, and at which neighbours:
        the entry must be gone everywhere, except behind the requester. Rows of a client that moves
        may be removed in both directions of a link, and neither removal waits for the other."""
        if wait.what not in REMOVALS or wait.target is None:
            return
        requester = wait.requester
        beyond = ~self.bits.bit(requester) if requester.is_broker else ~0
        for op in self.waits.removals.get(wait.target, ()):
            missing = self.waits[op].missing & beyond
            if missing and op != wait.op:
                yield op, missing

    def buffered(self) -> list[Entry]:
        """Subscriptions that no remote advertisement overlaps: they stay here.

        Scans all subscriptions: not for the hot path."""
        advertised = self.advertisements.overlapping_hops
        return [
            entry
            for entry in self.subscriptions
            if not advertised(entry.filter) & ~self.bits.bit(entry.source)
        ]
