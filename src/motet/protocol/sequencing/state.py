"""The durable state of a site: what it keeps about numbers, instances and streams; its image."""

from __future__ import annotations

from msgspec import Struct, field

from motet.protocol.sequencing.messages import OPEN, Timestamp

ON_ITS_WAY = -1.0
"""Instead of the time of the answer: other sites still add to the timestamp."""


class GivenNumber(Struct, array_like=True, gc=False):
    """A number, and what became of it."""

    client: str
    request: int
    stamp: Timestamp
    answered: float
    """When its timestamp was complete, or `ON_ITS_WAY`."""
    state: int = OPEN
    back: bool = False
    """Its publisher has given it back. It is void as soon as its timestamp is complete."""


class Instance(Struct):
    """What an instance of a client has requested here."""

    taken: int = 0
    """Its requests up to this one have numbers."""
    settled: int = 0
    """Its requests up to this one are confirmed."""
    unsettled: dict[int, GivenNumber] = field(default_factory=dict)
    """Those in between, in their sequence."""
    on_the_way: dict[int, None] = field(default_factory=dict)
    """Those of them that have no complete timestamp."""


class Home(Struct, array_like=True):
    """A stream whose changes begin here."""

    client: str
    topics: tuple[int, ...] = ()
    ever: tuple[int, ...] = ()
    """All topics that it has had, in mode `pairs`; else the same as `topics`."""
    done: int = 0
    """The last change that is complete."""
    cut: dict[int, int] = field(default_factory=dict)
    """The answer to it."""
    pending: int = 0
    """The change that is on its way over the sites, or 0."""
    wanted: tuple[int, ...] = ()
    """The topics after it."""
    ending: bool = False
    """The pending change is its expiry."""


# ── the image ────────────────────────────────────────────────────────────────────────────


class SiteImage(Struct, tag="site", array_like=True, frozen=True):
    """The first part. `log`: the topics of the last changes, oldest first."""

    now: float
    moment: int
    log: tuple[int, ...]


class TopicsImage(Struct, tag="topics", array_like=True, frozen=True):
    """Of each topic: its id, its name if it lives here, number, change, passage, and the last
    complete number."""

    rows: tuple[tuple[int, str, int, int, int, int], ...]


class StreamsImage(Struct, tag="streams", array_like=True, frozen=True):
    """Streams that are noted here, with their topics."""

    rows: tuple[tuple[str, tuple[int, ...]], ...]


class PartnersImage(Struct, tag="partners", array_like=True, frozen=True):
    """Of each topic: its partners, and those that are new since it passed, in their order."""

    rows: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]


class GoneImage(Struct, tag="gone", array_like=True, frozen=True):
    """By topic: the expired streams that its next timestamp names."""

    rows: tuple[tuple[int, tuple[str, ...]], ...]


class InstancesImage(Struct, tag="instances", array_like=True, frozen=True):
    """Instances: taken and settled. Their unsettled numbers follow."""

    rows: tuple[tuple[str, int, int], ...]


class HistoryImage(Struct, tag="history", array_like=True, frozen=True):
    """Void and published numbers that are remembered, in the order in which they became that."""

    rows: tuple[GivenNumber, ...]


class OpenImage(Struct, tag="open", array_like=True, frozen=True):
    """All numbers that are not void or published, or whose timestamps are not complete."""

    rows: tuple[GivenNumber, ...]


class VoidedImage(Struct, tag="voided", array_like=True, frozen=True):
    """Void numbers that the history has forgotten, but whose publishers do not know of it."""

    rows: tuple[GivenNumber, ...]


class StreamHomesImage(Struct, tag="homes", array_like=True, frozen=True):
    rows: tuple[tuple[str, Home], ...]


SITE_PARTS: tuple[type[Struct], ...] = (
    SiteImage,
    TopicsImage,
    StreamsImage,
    PartnersImage,
    GoneImage,
    InstancesImage,
    HistoryImage,
    OpenImage,
    VoidedImage,
    StreamHomesImage,
)
