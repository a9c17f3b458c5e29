"""The fault menu: what may go wrong in a simulated overlay, and how often.

Rates are chances per frame on the links that are rough. Weights are relative to each other:
about every `pace_s` one of them is drawn. Every fault that really happened is counted by kind.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from motet.errors import MisuseError


class FaultMenu(Struct, frozen=True):
    """All zeros: nothing ever goes wrong. Not even the disk takes time."""

    # ── frames between brokers, below the link layer ─────────────────────────────────────
    rough_links: float = 0.0
    """The share of links on which the next four rates hold."""
    rough_sides: float = 0.0
    """The same for stream links between members of cells."""
    control_loss: float = 0.0
    """If not 0, nothing else happens to control on rough links than that so much of it is lost on
    the way from the side that dialled: until it is sent again, streams overtake it."""
    loss: float = 0.0
    doubling: float = 0.0
    delay: float = 0.0
    reordering: float = 0.0

    # ── one of these about every `pace_s` ────────────────────────────────────────────────
    pace_s: float = 0.5
    cut: float = 0.0
    """A link is cut, each side notices in its own time, and later it heals."""
    kill: float = 0.0
    """A broker dies at some step and comes back with what its journal kept."""
    amnesia: float = 0.0
    """A broker dies and comes back with nothing, in a new incarnation."""
    disk_failure: float = 0.0
    """A sync fails: the broker dies at once, and comes back with what the disk took."""
    snapshot: float = 0.0
    """No fault, but a chance for one: a snapshot replaces the journal before it."""
    clock_jump: float = 0.0
    drop_client: float = 0.0
    """A client's connection breaks; the client connects again."""
    kill_client: float = 0.0
    """A client dies without a word; its lease runs out, or a successor comes before."""
    pause_client: float = 0.0
    """A client stands still: it reads nothing and does nothing."""
    twin_client: float = 0.0
    """A second client with the same id takes over."""
    twin_elsewhere: float = 0.0
    """A second client with the same id takes over from another broker."""
    slow_client: float = 0.0
    """A client acts but does not read, and its queue overflows."""

    kill_mate: float = 0.0
    """A mate of a cell dies and comes back; it keeps nothing anyway."""
    pause_mate: float = 0.0
    """A mate stands still, and later works off what came meanwhile, however old it is."""
    cut_side: float = 0.0
    """A stream link between two members is cut, and later heals."""
    orphan: float = 0.0
    """The link between a mate and its head is cut: the mate goes on with what it knows."""
    lag: float = 0.0
    """What a head tells a mate comes late, but not so late that the mate is given up."""
    cells: float = 0.0
    """The share of runs in which some brokers are cells of several processes."""
    stall: float = 0.0
    """A link takes everything and hands over nothing; then it goes on, or is dead."""
    log_failure: float = 0.0
    """The disk of a pubend's log is full: the broker dies at once, and comes back when there is
    room."""

    sure: bool = False
    """Brokers have pubends: events are exactly once."""

    deals: bool = False
    """Clients execute transactions."""

    sync_s: float = 0.0
    """The longest a journal takes to make facts durable."""

    @property
    def rates(self) -> tuple[float, ...]:
        """Running sums of what may happen to a frame."""
        chances = [getattr(self, kind) for kind in FRAME_FAULTS]
        return tuple(sum(chances[: n + 1]) for n in range(len(chances)))

    @property
    def weights(self) -> dict[str, float]:
        return {kind: getattr(self, kind) for kind in DRAWN}


DRAWN = (
    "cut",
    "kill",
    "amnesia",
    "disk_failure",
    "snapshot",
    "clock_jump",
    "drop_client",
    "kill_client",
    "pause_client",
    "twin_client",
    "slow_client",
    "twin_elsewhere",
    "stall",
    "log_failure",
    "kill_mate",
    "pause_mate",
    "cut_side",
    "orphan",
    "lag",
)

FRAME_FAULTS = ("loss", "doubling", "delay", "reordering")

PROFILES: dict[str, FaultMenu] = {
    "calm": FaultMenu(sync_s=0.004),
    "lossy": FaultMenu(
        rough_links=0.6,
        loss=0.03,
        doubling=0.08,
        delay=0.02,
        reordering=0.03,
        cut=1.0,
        pace_s=1.0,
        sync_s=0.004,
    ),
    "crash": FaultMenu(
        kill=3.0,
        amnesia=1.0,
        disk_failure=0.7,
        snapshot=3.0,
        clock_jump=0.5,
        cut=0.5,
        pace_s=0.5,
        sync_s=0.02,
    ),
    "clients": FaultMenu(
        drop_client=3.0,
        kill_client=1.5,
        pause_client=1.0,
        twin_client=1.0,
        twin_elsewhere=1.0,
        slow_client=1.5,
        clock_jump=0.5,
        pace_s=0.3,
        sync_s=0.004,
    ),
    "mixed": FaultMenu(
        rough_links=0.35,
        loss=0.02,
        doubling=0.05,
        delay=0.01,
        reordering=0.02,
        cut=1.0,
        kill=1.2,
        amnesia=0.4,
        disk_failure=0.3,
        snapshot=1.0,
        clock_jump=0.5,
        drop_client=1.0,
        kill_client=0.5,
        pause_client=0.5,
        twin_client=0.5,
        twin_elsewhere=0.5,
        slow_client=0.5,
        pace_s=0.5,
        sync_s=0.01,
    ),
}
PROFILES["delivery"] = replace(
    PROFILES["mixed"], stall=1.0, log_failure=0.3, drop_client=2.0, sure=True, cells=0.1
)
PROFILES["cells"] = replace(
    PROFILES["delivery"],
    cells=1.0,
    kill_mate=1.0,
    pause_mate=1.0,
    cut_side=1.5,
    orphan=2.5,
    amnesia=0.2,
    pace_s=0.4,
)
PROFILES["orphans"] = FaultMenu(
    sure=True, cells=1.0, orphan=3.0, pause_mate=1.0, kill=0.3, pace_s=0.6, sync_s=0.004
)
PROFILES["transactions"] = replace(PROFILES["delivery"], deals=True, cells=0.0, amnesia=0.15)
DEFAULT_PROFILE = "mixed"


def profile(name: str) -> FaultMenu:
    menu = PROFILES.get(name)
    if menu is None:
        raise MisuseError(f"no fault profile is called {name!r}; there are {', '.join(PROFILES)}")
    return menu
