"""The cost of clients that move: latency, pause, messages; what others notice; draining a broker.

Every broker is a process with a journal and a log on disk, synced before anything is told of what
they hold. The floor of a move is an echo over the same path through processes that only pass frames
on, two writes to a bare file that is synced, and a client that comes back to its session; that of a
publisher's pause is the echo alone. All are measured in turn with the moves. The messages of a move
are what the brokers of the whole overlay count, in the presence of others' subscriptions and
advertisements, of which few or many must make no difference.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple, get_args

from motet.broker.overlay.topology import Topology
from motet.client.orders import order_drain
from motet.fleet.convoy import PARALLEL
from motet.fleet.drain import Drain
from motet.fleet.fleet import Fleet, links, unsettled_links
from motet.fleet.process import HOST, free_addresses
from motet.protocol.link.messages import ControlMessage
from motet.protocol.mobility.messages import MoveOffer, MoveReply, Strays
from motet.protocol.routing.messages import Echo, Started, Subscribe, Unsubscribe
from motet.runtime.loop import run as run_loop
from motet.runtime.tcp import address_of, host_and_port
from motet_labs import processes
from motet_labs.bench import load, movers
from motet_labs.experiments.delay_proxy import delay
from motet_labs.figures import Figure, Progress, Samples, Size, in_rounds
from motet_labs.processes import Worker, worker

LINE = 5
"""Brokers of the overlay. Clients move between the second and the fourth, so that there are brokers
beside the path."""
ENDS = ("B2", "B4")
PATH = ("B2", "B3", "B4")
HOPS = len(PATH) - 1
DELAYS_S = (0.0, 0.001)
"""The latency of the links between brokers: none, and about that of a data centre."""
CONTROL = frozenset(kind.__name__ for kind in get_args(ControlMessage))
SOFT = frozenset(kind.__name__ for kind in (MoveOffer, MoveReply, Strays))
ATTRACTED = frozenset(kind.__name__ for kind in (Subscribe, Unsubscribe, Echo, Started))
"""Subscriptions that go where the publisher is now, and not where it was, and their starts."""
FLOW_S = 0.05
"""How long a publisher publishes before it moves, and after it."""
CROWD_LINE = 3
STAY_S = 10.0
"""Every client of a crowd moves once in this time, as in the paper."""
AHEAD = 4096
"""Events that the stream of others may be ahead of its subscriber."""
WARM_UP_S = 1.0
DRAINED, TARGET = "B2", "B3"
DRAIN_S = 300.0
POLL_S = 0.05
SETTLE_S = 30.0

# Goals.
OVER_FLOOR = 2.0
CONTROL_PER_HOP = 3.0
SOFT_PER_HOP = 1.0
UNAFFECTED = 0.9
DRAINING = 0.8


class MobilityEffort(NamedTuple):
    rounds: int
    moves: int
    """Per round, of a subscriber and of a publisher each."""
    counted: int
    """Moves whose messages are counted."""
    others: tuple[int, int]
    """Subscriptions per broker, few and many; half of them overlap with the moving publisher's
    advertisement."""
    crowd: int
    slices: int
    slice_s: float
    clients: int
    """To be drained."""
    drains: int
    publishers: int = 40
    """Of the crowd."""
    crowd_per_s: float = 100.0


EFFORTS = {
    Size.LEAST: MobilityEffort(1, 2, 2, (2, 4), 8, 1, 0.2, 8, 1, publishers=2),
    Size.SHORT: MobilityEffort(2, 15, 10, (5, 50), 400, 2, 3.0, 200, 1),
    Size.LONG: MobilityEffort(4, 40, 20, (5, 200), 400, 3, 8.0, 1000, 2),
}


def run(size: Size, progress: Progress) -> list[Figure]:
    figures: list[Figure] = []
    for part in (_moves, _crowd, _drain):
        with processes.folder() as folder, ExitStack() as stack:
            figures += part(EFFORTS[size], MobilityStage(folder, stack), progress)
    return figures


# ── overlays ─────────────────────────────────────────────────────────────────────────────


class MeasuredOverlay(NamedTuple):
    fleet: Fleet
    echo: str
    """The address of an echo over the path, with the same delays."""

    def urls(self, names: Iterable[str]) -> dict[str, str]:
        addresses = self.fleet.addresses
        return {name: addresses[name] for name in names}

    def sent(self) -> Counter[str]:
        """What all brokers have sent, by kind, once nothing is on the way."""
        deadline = time.monotonic() + SETTLE_S
        before: Counter[str] | None = None
        while True:
            states = run_loop(self.fleet.statuses())
            moves = [each["moves"] for each in states.values()]
            under_way = sum(len(each["in_transit"]) + len(each["departing"]) for each in moves)
            found = sum((Counter(each["sent"]) for each in states.values()), Counter[str]())
            control = Counter({kind: found[kind] for kind in CONTROL})
            if not (under_way or unsettled_links(states)) and control == before:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"the overlay is not quiet after {SETTLE_S:g} s")
            before = control
            time.sleep(POLL_S)


class MobilityStage(NamedTuple):
    """Creates overlays, which all end together."""

    folder: Path
    stack: ExitStack

    def overlay(self, brokers: int, name: str, delay_s: float = 0.0) -> MeasuredOverlay:
        place = self.folder / name
        place.mkdir()
        return self.stack.enter_context(_overlay(Topology.line(brokers), place, delay_s))


@contextmanager
def _overlay(topology: Topology, folder: Path, delay_s: float) -> Iterator[MeasuredOverlay]:
    """A line of brokers, and an echo over as many hops as the path."""
    brokers = len(topology.brokers)
    addresses = free_addresses(brokers + HOPS + 1)
    relays = addresses[brokers:]
    with ExitStack() as stack:
        shown = {address: address for address in addresses}
        if delay_s:
            ports = {host_and_port(address)[1]: address for address in addresses}
            proxy = stack.enter_context(worker(delay, delay_s, list(ports)))
            told = proxy.hear()
            shown = {ports[int(port)]: address_of(HOST, far) for port, far in told.items()}
        onward = ""
        for address in reversed(relays):
            stack.enter_context(worker(movers.relay, address, onward)).hear()
            onward = shown[address]
        places = tuple(
            replace(place, listen=address)
            for place, address in zip(topology.brokers, addresses, strict=False)
        )
        placed = replace(topology, brokers=places)
        dialled = {place.name: shown[place.listen] for place in places}
        detours = {link: dialled[link[1]] for link in links(placed)} if delay_s else {}
        fleet = Fleet(placed, folder, detours=detours)
        stack.callback(lambda: run_loop(fleet.end()))
        run_loop(fleet.start_all())
        run_loop(fleet.until_links_up())
        yield MeasuredOverlay(fleet, relays[0])


# ── one client ───────────────────────────────────────────────────────────────────────────


def _moves(effort: MobilityEffort, stage: MobilityStage, progress: Progress) -> list[Figure]:
    """Latency, pause and messages. The subscriptions of others become many only for the count of
    messages: their own messages take time."""
    overlays: dict[float, MeasuredOverlay] = {}
    walkers: dict[float, Worker] = {}
    samples = {delay_s: Samples() for delay_s in DELAYS_S}
    counted: dict[int, dict[str, dict[str, float]]] = {}
    few, many = effort.others

    def bring(subscriptions: int) -> None:
        for overlay in overlays.values():
            _bring_others(stage, overlay, subscriptions)

    def count(subscriptions: int) -> None:
        progress(f"messages, beside {subscriptions * LINE} subscriptions of others")
        counted[subscriptions * LINE] = _counted(overlays[0.0], walkers[0.0], effort)

    for delay_s in DELAYS_S:
        progress(f"a line of {LINE} brokers, {delay_s * 1e3:g} ms per link")
        overlay = overlays[delay_s] = stage.overlay(LINE, f"{delay_s * 1e3:g}-ms", delay_s)
        how = (overlay.urls(ENDS), overlay.echo, stage.folder)
        walkers[delay_s] = stage.stack.enter_context(worker(movers.movers, *how))
    bring(few)
    count(few)
    for number in range(1, effort.rounds + 1):
        for delay_s, walker in walkers.items():
            progress(f"round {number} of {effort.rounds}: moves, {delay_s * 1e3:g} ms per link")
            samples[delay_s].add(_in_ms(walker.ask("sample", times=effort.moves)))
            pauses = walker.ask("pauses", times=effort.moves, flow_s=FLOW_S)
            found = _in_ms(pauses)
            samples[delay_s].add({f"publishing {name}": ms for name, ms in found.items()})
    bring(many - few)
    count(many)
    figures = []
    for delay_s, sampled in samples.items():
        figures += _latencies(f"{delay_s * 1e3:g} ms per link", sampled.medians())
    for others, sent in counted.items():
        figures += _messages(others, sent)
    return figures


def _bring_others(stage: MobilityStage, overlay: MeasuredOverlay, subscriptions: int) -> None:
    """More clients that stay, at every broker."""
    how = (list(overlay.fleet.addresses.values()), subscriptions, 2)
    stage.stack.enter_context(worker(movers.others, *how)).hear()


def _in_ms(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: median(values) * 1e3 for name, values in found.items()}


def _latencies(name: str, ms: Mapping[str, float]) -> list[Figure]:
    least = ms["echo"] + ms["write"] + ms["another write"] + ms["reconnection"]
    parts = f"echo {ms['echo']:.3g}, writes {ms['write'] + ms['another write']:.3g}"
    parts += f", reconnection {ms['reconnection']:.3g}"
    echo = ms["publishing echo"]
    return [
        Figure(f"a subscriber's move over {HOPS} hops, {name} (floor: {parts})",
               ms["subscriber"], "ms", least, OVER_FLOOR * least),
        Figure("… a publisher's move", ms["publisher"], "ms", least, OVER_FLOOR * least),
        Figure(f"… pause of a publisher (floor: an echo over the path; usually "
               f"{ms['publishing usual']:.3g})",
               ms["publishing pause"], "ms", echo, OVER_FLOOR * echo),
    ]  # fmt: skip


# ── messages ─────────────────────────────────────────────────────────────────────────────


def _counted(
    overlay: MeasuredOverlay, walker: Worker, effort: MobilityEffort
) -> dict[str, dict[str, float]]:
    """By who moves: what one move makes all brokers send, by kind."""
    found = {}
    for who in ("subscriber", "publisher"):
        before = overlay.sent()
        walker.ask("move", who=who, times=effort.counted)
        more = overlay.sent() - before
        found[who] = {kind: sent / effort.counted for kind, sent in more.items()}
    return found


def _messages(others: int, counted: Mapping[str, Mapping[str, float]]) -> list[Figure]:
    def sum_of(who: str, kinds: Iterable[str]) -> float:
        return sum(counted[who].get(kind, 0.0) for kind in kinds)

    subscriber = sum_of("subscriber", CONTROL) / HOPS
    publisher = sum_of("publisher", CONTROL - ATTRACTED)
    attracted = sum_of("publisher", ATTRACTED)
    overlapping = 1 + others // 2  # the moving subscriber is one of them
    return [
        Figure(f"control messages per hop of a subscriber's move, beside {others} subscriptions",
               subscriber, "messages", None, CONTROL_PER_HOP),
        Figure("… soft messages per hop",
               sum_of("subscriber", SOFT) / HOPS, "messages", None, SOFT_PER_HOP),
        Figure(f"… control messages of a publisher's move over {HOPS} hops, of {LINE} brokers",
               publisher, "messages", None, CONTROL_PER_HOP * HOPS + LINE),
        Figure(f"… and of what it attracts, for each of {overlapping} subscriptions",
               attracted / overlapping, "messages"),
    ]  # fmt: skip


# ── others, while a crowd moves ──────────────────────────────────────────────────────────


class BesideMoves(NamedTuple):
    """Rates of a stream of others, in slices of time."""

    alone: float
    beside: float
    ratio: float
    """Of each slice with moves and the two around it; the median."""


class CrowdMoves:
    """A crowd that moves to and fro, and a stream of others over the same path."""

    def __init__(self, effort: MobilityEffort, crowd: Worker, giving: Worker, taking: Worker):
        self._effort = effort
        self._crowd = crowd
        self._giving = giving
        self._taking = taking
        self.took_s: list[float] = []
        self.failures: list[str] = []

    def measure(self, per_s: float, tell: Progress) -> BesideMoves:
        """The stream goes at this rate; 0: at full speed."""
        effort = self._effort
        self._giving.ask("go", per_s=per_s)
        time.sleep(min(WARM_UP_S, effort.slice_s))
        still = partial(time.sleep, effort.slice_s / 2)
        alone, beside, ratios = [self._rate(still)], [], []
        for number in range(1, effort.slices + 1):
            tell(f"slice {number} of {effort.slices}")
            beside.append(self._rate(self._travel))
            alone.append(self._rate(still))
            ratios.append(beside[-1] / mean(alone[-2:]))
        self._published = self._giving.ask("stop")
        return BesideMoves(median(alone), median(beside), median(ratios))

    def _travel(self) -> None:
        effort = self._effort
        moves = max(2, round(effort.crowd * effort.slice_s / STAY_S))
        found = self._crowd.ask("travel", moves=moves, seconds=effort.slice_s)
        self.took_s += found["took_s"]
        self.failures += found["failures"]

    def _rate(self, meanwhile: Callable[[], None]) -> float:
        began = self._taking.ask("mark")
        meanwhile()
        ended = self._taking.ask("mark")
        return float((ended["taken"] - began["taken"]) / (ended["at_s"] - began["at_s"]))

    def others_wrong(self) -> int:
        """Events of the stream that are missing, doubled or out of order."""
        return sum(self._taking.ask("account", **self._published).values())


def _crowd(effort: MobilityEffort, stage: MobilityStage, progress: Progress) -> list[Figure]:
    overlay = stage.overlay(CROWD_LINE, "crowd")
    urls = overlay.urls(("B1", f"B{CROWD_LINE}"))
    near, far = urls.values()
    enter = stage.stack.enter_context
    progress(f"{effort.crowd} clients connect")
    crowd = enter(worker(movers.crowd, urls, effort.crowd, effort.publishers))
    crowd.ask("flow", per_s=effort.crowd_per_s)
    taking = enter(worker(load.subscriber, far, 0, AHEAD))
    taking.ask("mark")  # wait until it is connected
    giving = enter(worker(load.publisher, near, True, AHEAD))
    moves = CrowdMoves(effort, crowd, giving, taking)
    full = moves.measure(0.0, lambda text: progress(f"{text}: others at full speed"))
    half = moves.measure(full.alone / 2, lambda text: progress(f"{text}: others at half of that"))
    progress("every event must arrive")
    wrong = moves.others_wrong()
    account = crowd.ask("account")
    what = f"while {effort.crowd} clients move, {effort.crowd / STAY_S:g} moves/s"
    counts = not (wrong or moves.failures or account["lost_sessions"])
    exact = f"of {account['expected']:,}, {len(moves.took_s)} moves"
    return [
        Figure(f"events of others on the path {what} (floor: before)",
               full.beside, "events/s", full.alone, sense="at least", counts=counts),
        Figure("… per before", full.ratio, "times", None, UNAFFECTED, "at least", counts=counts),
        Figure("… per before, at half of that rate",
               half.ratio, "times", None, UNAFFECTED, "at least", counts=counts),
        Figure(f"events of others missed, doubled or swapped {what}", wrong, "events", None, 0.0),
        *(Figure(f"events {name} at clients that move, {exact}", account[name], "events", None,
                 0.0, counts=account[name] == 0) for name in ("missed", "doubled", "swapped")),
        Figure("moves that failed", len(moves.failures), "moves", None, 0.0,
               counts=not moves.failures),
        Figure(f"latency of a move {what}, p50", median(moves.took_s) * 1e3, "ms"),
    ]  # fmt: skip


# ── draining a broker ────────────────────────────────────────────────────────────────────


def _drain(effort: MobilityEffort, stage: MobilityStage, progress: Progress) -> list[Figure]:
    """A broker is drained, and its clients then come back by themselves, over the same path."""
    overlay = stage.overlay(CROWD_LINE, "drain")
    addresses = overlay.fleet.addresses
    urls = overlay.urls((DRAINED, TARGET))
    progress(f"{effort.clients} clients connect")
    crowd = stage.stack.enter_context(worker(movers.crowd, urls, effort.clients, 0))
    crowd.ask("arrived", at=DRAINED)
    lost = 0.0

    def drain(effort: MobilityEffort) -> dict[str, float]:
        nonlocal lost
        began = time.perf_counter()
        report = run_loop(Drain(addresses, DRAINED, (TARGET,), DRAIN_S).run())
        took_s = time.perf_counter() - began
        stayed = effort.clients - len(report.moved)
        lost = crowd.ask("arrived", at=TARGET)["lost_sessions"] + stayed
        run_loop(order_drain(addresses[DRAINED], False))
        return {"drained": effort.clients / took_s}

    def go(effort: MobilityEffort) -> dict[str, float]:
        took_s = crowd.ask("move_all", to=DRAINED, parallel=PARALLEL)["seconds"]
        crowd.ask("arrived", at=DRAINED)
        return {"moves": effort.clients / took_s}

    stages = {f"{effort.clients} clients are drained": drain, "they move back": go}
    middle = in_rounds(effort.drains, stages, effort, progress).medians()
    return [
        Figure(f"drain of {effort.clients:,} clients (floor: moves of one path, {PARALLEL} at a "
               "time)",
               middle["drained"], "clients/s", middle["moves"], DRAINING * middle["moves"],
               "at least", counts=not lost),
        Figure("clients that stayed, or lost their sessions", lost, "clients", None, 0.0),
    ]  # fmt: skip
