"""The configuration of a site, given at its start."""

from __future__ import annotations

from msgspec import Struct

from motet.errors import MisuseError
from motet.protocol.sequencing.messages import CAUSAL, MODES
from motet.protocol.sequencing.placement import ANY, site_of
from motet.protocol.sequencing.site import REMEMBERED, REMEMBERED_ENTRIES
from motet.protocol.sequencing.standby import PAIR, WITNESS

MOST_TOPICS = 100_000


class SiteConfig(Struct, frozen=True):
    """`incarnation` must differ from that of every earlier site of this name whose state is lost.
    Name, line, placement and mode are founded with a site; the rest may change at a start."""

    name: str
    line: tuple[str, ...] = ()
    """The names of all sites, lowest first; empty: this is the only one."""
    placement: tuple[tuple[str, str], ...] = ()
    """Topics with these names, or prefixes (they end with `*`), live at these sites."""
    elsewhere: str = ""
    """The site of all other topics; empty: the lowest one."""
    mode: str = CAUSAL
    incarnation: int = 1
    lease_s: float = 10.0
    """How long a number is open without confirmation."""
    keep_s: float = 60.0
    """How long a stream is kept whose client says nothing."""
    heartbeat_s: float = 2.0
    addresses: dict[str, str] = {}
    """Where clients reach the sites. Its own one is where it listens, unless it is named here."""
    most_topics: int = MOST_TOPICS
    remembered: int = REMEMBERED
    remembered_entries: int = REMEMBERED_ENTRIES
    dials: dict[str, str] = {}
    """The sites that this one dials, and their addresses; several are separated by commas."""
    address: str = ""
    """Where others reach this replica of the site; empty: where it listens."""
    other: str = ""
    """The address of the other replica, if this site has two. It may be learnt later."""
    second: bool = False
    """As long as it has no state, it waits for that of the other replica."""
    witness: str = ""
    """The address of the witness; empty: there is none."""
    patience_s: float = 2.0
    """The other replica is gone when nothing was heard of it for so long."""

    @property
    def mates(self) -> tuple[str, ...]:
        """Peers that get frames before the standby has their facts."""
        return (PAIR, WITNESS)

    @property
    def waits(self) -> bool:
        """As long as it has no state, it leads only if another process says so."""
        return self.second or bool(self.witness)

    @property
    def sites(self) -> tuple[str, ...]:
        return self.line or (self.name,)

    @property
    def position(self) -> int:
        return self.sites.index(self.name)

    @property
    def neighbours(self) -> tuple[str, ...]:
        """All other sites: each has a link to each."""
        return tuple(name for name in self.sites if name != self.name)

    def site_of(self, topic: str) -> str:
        return site_of(topic, self.placement, self.elsewhere or self.sites[0])

    @property
    def identity(self) -> str:
        """What all sites of a line must agree on."""
        placed = ",".join(f"{name}={site}" for name, site in sorted(self.placement))
        return f"{self.mode}|{','.join(self.sites)}|{placed}|{self.elsewhere or self.sites[0]}"

    def check(self) -> None:
        """Raise `MisuseError` if it contradicts itself."""
        sites = self.sites
        if self.name not in sites:
            raise MisuseError(f"{self.name} is not in its line of sites: {', '.join(sites)}")
        if len(set(sites)) < len(sites):
            raise MisuseError(f"a site stands twice in the line {', '.join(sites)}")
        if reserved := set(sites) & set(self.mates):
            raise MisuseError(f"no site is named {', '.join(sorted(reserved))}")
        if self.mode not in MODES:
            raise MisuseError(f"unknown mode {self.mode!r}; use one of {', '.join(MODES)}")
        for name, site in (*self.placement, (ANY, self.elsewhere or sites[0])):
            if site not in sites:
                raise MisuseError(f"topics {name} live at {site}, which is not in the line")
            if ANY in name[:-1]:
                raise MisuseError(f"{name}: {ANY} is allowed at the end of a prefix only")
        if len({name for name, _ in self.placement}) < len(self.placement):
            raise MisuseError("a topic or prefix has two sites")
        if min(self.lease_s, self.keep_s, self.heartbeat_s, self.patience_s) <= 0:
            raise MisuseError("lease_s, keep_s, heartbeat_s and patience_s must be more than 0")
        if self.second and not self.other:
            raise MisuseError("a standby needs the address of its primary")
