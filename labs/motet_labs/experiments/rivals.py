"""The overlays of the rival protocols, up at the same time, and what their brokers send.

plain       no covering: clients move by transactions, or issue everything again
covering    covering that takes back what a wider filter covers, as in paper 3: for its rival
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from motet.errors import UnavailableError
from motet.fleet.fleet import Fleet, Link, links
from motet.fleet.process import HOST, cpu_s, free_ports
from motet.model.coverage import RETRACT, Covering
from motet.protocol.delivery import messages as delivery
from motet.protocol.link.messages import ControlMessage
from motet.protocol.mobility import messages as mobility
from motet.protocol.routing.messages import RoutingMessage
from motet.runtime.loop import run
from motet.runtime.tcp import address_of, host_and_port
from motet_labs.experiments import paper3
from motet_labs.experiments.delay_proxy import delay
from motet_labs.experiments.movers import movers
from motet_labs.experiments.shapes import WantedInterval
from motet_labs.processes import Worker, worker

PLAIN, COVERING = "plain", "covering"
OVERLAYS: Final[dict[str, Covering]] = {PLAIN: False, COVERING: RETRACT}


class MoveLine(NamedTuple):
    """How the clients of a line of the figures move, and among which events."""

    name: str
    overlay: str
    how: str
    sure: bool = False


RECONFIGURATION = MoveLine("reconfiguration", PLAIN, "move")
COVERED = MoveLine("covering", COVERING, "reissue")
REISSUE = MoveLine("reissue without covering", PLAIN, "reissue")
SURE = MoveLine("reconfiguration, exactly once", PLAIN, "move", sure=True)
LINES: Final = (RECONFIGURATION, COVERED, REISSUE, SURE)

# ── what brokers send ────────────────────────────────────────────────────────────────────

ROUTES = ("Subscribe", "Unsubscribe", "Advertise", "Unadvertise")
"""The messages that the paper counts."""
SESSIONS = ("ClientHere", "ClientGone")
CONTROL: Final = frozenset(kind.__name__ for kind in get_args(ControlMessage))
ROUTING: Final = frozenset(kind.__name__ for kind in get_args(RoutingMessage))
SOFT: Final = (mobility.MoveOffer.__name__, mobility.MoveReply.__name__, mobility.Strays.__name__)
STREAM: Final = (
    *(kind.__name__ for kind in (delivery.Knowledge, delivery.Nack, delivery.AckUp)),
    delivery.AckExpected.__name__,
    mobility.FencedAck.__name__,
)


class Traffic(NamedTuple):
    """Between brokers. `control` is all messages of that kind; the next five are its parts."""

    control: float = 0.0
    moves: float = 0.0
    routes: float = 0.0
    echoes: float = 0.0
    sessions: float = 0.0
    others: float = 0.0
    soft: float = 0.0
    stream: float = 0.0
    events: float = 0.0

    @classmethod
    def of(cls, sent: Mapping[str, int]) -> Traffic:
        def total(names: Sequence[str] | frozenset[str]) -> int:
            return sum(sent.get(name, 0) for name in names)

        control, routing = total(CONTROL), total(ROUTING)
        parts = total(ROUTES), total(("Echo",)), total(SESSIONS)
        others = routing - sum(parts)
        beside = total(SOFT), total(STREAM), total(("Publications",))
        return cls(control, control - routing, *parts, others, *beside)

    def per(self, movements: int) -> Traffic:
        return Traffic(*(each / max(1, movements) for each in self))

    def without(self, other: Traffic) -> Traffic:
        return Traffic(*(a - b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> Traffic:
        return Traffic(*(each * factor for each in self))


# ── overlays ─────────────────────────────────────────────────────────────────────────────


class Rival(NamedTuple):
    fleet: Fleet
    load: Worker

    def sent(self) -> Counter[str]:
        """By kind: what all brokers have sent so far."""
        statuses = run(self.fleet.statuses())
        missing = self.fleet.processes.keys() - statuses.keys()
        if missing:
            raise UnavailableError(f"{', '.join(sorted(missing))} did not tell what they have sent")
        found = Counter[str]()
        for status in statuses.values():
            found.update(status["sent"])
        return found

    def cpu_s(self) -> float:
        """Of all brokers."""
        return sum(cpu_s(process.pid) for process in self.fleet.processes.values())

    def populate(self, wanted: Sequence[WantedInterval], ways: Sequence[tuple[str, str]]) -> None:
        chosen = [
            {"wanted": asdict(each), "way": way} for each, way in zip(wanted, ways, strict=True)
        ]
        self.load.ask("populate", movers=chosen)


class MoveSlice(NamedTuple):
    """What one line did for a while, as its worker told it, and what its brokers did for it."""

    line: MoveLine
    told: dict[str, Any]
    sent: Counter[str]
    cpu_s: float


def observe(line: MoveLine, rivals: Mapping[str, Rival], do: str, **details: Any) -> MoveSlice:
    rival = rivals[line.overlay]
    before, spent_s = rival.sent(), rival.cpu_s()
    told = rival.load.ask(do, how=line.how, **details)
    spent_s = rival.cpu_s() - spent_s
    return MoveSlice(line, told, rival.sent() - before, spent_s)


@contextmanager
def rivals(
    folder: Path, brokers: int = paper3.BROKERS, delays_s: Sequence[float] = ()
) -> Iterator[dict[str, Rival]]:
    """With `delays_s`, links between brokers have these delays, in turn; those of clients none."""
    with ExitStack() as stack:
        found = {}
        for name, covering in OVERLAYS.items():
            topology = paper3.topology(free_ports(brokers), covering)
            detours = _detours(stack, links(topology), topology.place, delays_s)
            fleet = Fleet(topology, folder / name, detours=detours)
            stack.callback(_end, fleet)
            run(fleet.start_all())
            run(fleet.until_links_up())
            urls = fleet.addresses
            found[name] = Rival(fleet, stack.enter_context(worker(movers, urls, paper3.PUBLISHERS)))
        yield found


def _end(fleet: Fleet) -> None:
    run(fleet.end())


def _detours(
    stack: ExitStack, wires: Sequence[Link], place: Any, delays_s: Sequence[float]
) -> dict[Link, str]:
    """Every dialled link leads through a proxy with its delay."""
    if not delays_s:
        return {}
    ports: dict[float, dict[Link, int]] = {}
    for link, delay_s in zip(wires, cycle(delays_s), strict=False):
        _, port = host_and_port(place(link[1]).listen)
        ports.setdefault(delay_s, {})[link] = port
    detours: dict[Link, str] = {}
    for delay_s, some in ports.items():
        proxy = stack.enter_context(worker(delay, delay_s, sorted(set(some.values()))))
        through = {int(port): shown for port, shown in proxy.hear().items()}
        detours |= {link: address_of(HOST, through[port]) for link, port in some.items()}
    return detours
