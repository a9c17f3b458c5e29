"""Frames between clients and sites, and messages along the line of sites.

    client ── OrderHello ──▶ site         an instance of a client; answered by OrderWelcome
    client ── TopicQuery ──▶ site         the numbers of topics that live there: TopicIds
    client ── NumberRequest ──▶ site      numbers for events: Numbers, in the same sequence
    client ── GiveBack ──▶ site           a number that it will not use: it becomes void
    client ── Confirm ──▶ site            which of its numbers are published
    client ── ChangeRequest ──▶ home      the topics of a stream from now on: Changed has the cut
    client ── Keep ──▶ home               the stream lives; so does every other frame of it
    client ── AskNumbers ──▶ site                what became of numbers: Told
    client ── HowFar ──▶ site             the last number of each topic: Far

    site ── StampPassage ──▶ next site up      timestamps that higher sites add to
    site ── Stamped ──▶ first site        a timestamp that is complete
    site ── ChangePassage ──▶ next site   a change of a stream, on its way over the sites
    site ── ChangeMade ──▶ home           its cut, from the last site

A topic is an integer on the wire: its site gives it one when it first hears its name. Topic ids of
site `i` of a line of `n` are `i`, `i + n`, `i + 2n`, …, so an id tells its site. Entries of a
timestamp are a flat list: topic, number, topic, number, …
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from motet.protocol.traits import SMALL_BYTES, STRANGER, frame

MAX_TOPIC_CHARS: Final = 200
MAX_TOPICS_PER_FRAME: Final = 4096
MAX_REQUESTS_PER_FRAME: Final = 4096
MAX_UNSETTLED: Final = 16384
"""Requests of one instance that may be neither published nor given back."""
MAX_TOPICS_OF_STREAM: Final = 1000
"""In mode `pairs`: that it has ever had."""
MAX_STREAMS_OF_CLIENT: Final = 1000
"""Of one instance, whose home is one site."""
MAX_ASKED: Final = 1024
"""Numbers that one `AskNumbers` may name."""
LAST_NUMBER: Final = 2**62

SEQUENCED: Final = ("sequenced",)
"""A client of a sequencer."""

CAUSAL: Final = "causal"
PAIRS: Final = "pairs"
MODES: Final = (CAUSAL, PAIRS)

OPEN: Final = 0
"""Given to a publisher that has not confirmed it."""
VOID: Final = 1
"""No event has it: pass it, with its entries."""
PUBLISHED: Final = 2
"""Its publisher has confirmed that the event was published."""
FORGOTTEN: Final = 3
"""The site does not remember it any more."""
UNGIVEN: Final = 4
"""The site has not given it: who says that there is such an event has made it up."""


class Timestamp(Struct, array_like=True, frozen=True, gc=False):
    """The number of an event of a topic, and what must come before it. `entries`: of these topics,
    everything up to these numbers. `gone`: streams that had the topic and have expired."""

    topic: int
    number: int
    entries: tuple[int, ...] = ()
    gone: tuple[str, ...] = ()


# ── between clients and sites ────────────────────────────────────────────────────────────


@frame(
    senders=STRANGER,
    hello=lambda hello: ("sequenced", hello.client),
    versioned=True,
    most_bytes=SMALL_BYTES,
)
class OrderHello(Struct, tag="ord", array_like=True, frozen=True):
    """An instance of a client: a name and something random. A new process is another instance."""

    version: int
    client: str
    credentials: bytes = b""


@frame()
class OrderWelcome(Struct, tag="ord=", array_like=True, frozen=True):
    """`line` has the name and the address of each site, lowest first. `placement`: topics with
    these names or prefixes (they end with `*`) live at these sites, all others at `elsewhere`.
    `answered`: requests of this instance up to this one were taken before. 0: the site does not
    know the instance, or has forgotten it: of what it had not confirmed, nothing is open. It goes
    on with its next request. `founding` differs if the site has lost its state and begins anew."""

    site: str
    line: tuple[tuple[str, str], ...]
    placement: tuple[tuple[str, str], ...]
    elsewhere: str
    mode: str
    lease_s: float
    keep_s: float
    """How long a stream is kept whose client says nothing."""
    heartbeat_s: float
    answered: int = 0
    founding: int = 0


@frame(senders=SEQUENCED)
class TopicQuery(Struct, tag="topic", array_like=True, frozen=True):
    names: tuple[str, ...]


@frame()
class TopicIds(Struct, tag="topic=", array_like=True, frozen=True):
    ids: dict[str, int]


@frame(senders=SEQUENCED)
class NumberRequest(Struct, tag="num", array_like=True, frozen=True):
    """A number for an event of each topic: requests `first`, `first + 1`, … of this instance at
    this site. Requests up to `confirmed` are published or given back."""

    first: int
    topics: tuple[int, ...]
    confirmed: int = 0


@frame()
class Numbers(Struct, tag="num=", array_like=True, frozen=True):
    """Timestamps for requests `first`, `first + 1`, …; None for one that is void already. A request
    whose timestamp other sites add to is answered later, so answers may come in any order."""

    first: int
    stamps: tuple[Timestamp | None, ...]


@frame(senders=SEQUENCED)
class GiveBack(Struct, tag="back", array_like=True, frozen=True):
    """No event will have the numbers of these requests. Answered by `RequestsSettled`; repeat it on
    a new connection before anything that confirms more, if it was not answered."""

    requests: tuple[int, ...]


@frame(senders=SEQUENCED)
class Confirm(Struct, tag="pubd", array_like=True, frozen=True):
    """Requests up to this one are published or given back. Answered by `RequestsSettled`."""

    upto: int


@frame()
class RequestsSettled(Struct, tag="pubd=", array_like=True, frozen=True):
    """Requests up to `upto` are settled. Those in `voided` were void before they were confirmed:
    subscribers may have passed them."""

    upto: int
    voided: tuple[int, ...] = ()


@frame(senders=SEQUENCED)
class ChangeRequest(Struct, tag="chg", array_like=True, frozen=True):
    """Change `number` of a stream: from now on it has these topics; none: it ends. The first one is
    number 1 and opens it. A change that comes again is answered again."""

    stream: str
    number: int
    topics: tuple[int, ...]


@frame()
class Changed(Struct, tag="chg=", array_like=True, frozen=True):
    """The cut of a change: the last number of each of its topics before it. `error`: nothing has
    changed, and why; `Expired` if the stream is unknown here or has expired."""

    stream: str
    number: int
    cut: dict[int, int] = {}
    error: str = ""
    text: str = ""


@frame(senders=SEQUENCED, most_bytes=SMALL_BYTES)
class Keep(Struct, tag="keep", array_like=True, frozen=True):
    """These streams live. Answered by `StreamsKept`."""

    streams: tuple[str, ...]


@frame()
class StreamsKept(Struct, tag="keep=", array_like=True, frozen=True):
    expired: tuple[str, ...] = ()


@frame(senders=SEQUENCED)
class AskNumbers(Struct, tag="what", array_like=True, frozen=True):
    """What became of numbers of a topic that lives here?"""

    topic: int
    numbers: tuple[int, ...]


@frame()
class Told(Struct, tag="what=", array_like=True, frozen=True):
    """`answers`: number, state, and the timestamp if the site has told it to the publisher."""

    topic: int
    answers: tuple[tuple[int, int, Timestamp | None], ...]


@frame(senders=SEQUENCED)
class HowFar(Struct, tag="far", array_like=True, frozen=True):
    topics: tuple[int, ...]


@frame()
class Far(Struct, tag="far=", array_like=True, frozen=True):
    """The last number of each topic whose timestamp is complete."""

    numbers: dict[int, int]


SequencingFrame = (
    OrderHello
    | OrderWelcome
    | TopicQuery
    | TopicIds
    | NumberRequest
    | Numbers
    | GiveBack
    | Confirm
    | RequestsSettled
    | ChangeRequest
    | Changed
    | Keep
    | StreamsKept
    | AskNumbers
    | Told
    | HowFar
    | Far
)

# ── between sites: control messages, numbered and repeated by the ledgers of links ───────


class StampPassage(Struct, tag="pass", array_like=True, frozen=True):
    """Timestamps that begin at a site and go up the line, FIFO. One frame of requests keeps its
    sequence, so they may have different ends."""

    first: int
    """The position in the line of the site where they begin."""
    lasts: tuple[int, ...]
    """For each timestamp: the position of the last site that adds to it."""
    stamps: tuple[Timestamp, ...]


class Stamped(Struct, tag="stamped", array_like=True, frozen=True):
    """Timestamps that are complete, on their way to the site where they began."""

    stamps: tuple[Timestamp, ...]


class ChangePassage(Struct, tag="change", array_like=True, frozen=True):
    """A change of a stream, or its end, on its way up over sites. `topics`: what it has from now
    on; `named`: all topics whose sites it concerns; `numbers`: of these, up to now."""

    stream: str
    home: int
    number: int
    topics: tuple[int, ...]
    named: tuple[int, ...]
    numbers: dict[int, int] = {}
    expired: bool = False


class ChangeMade(Struct, tag="changed", array_like=True, frozen=True):
    stream: str
    number: int
    cut: dict[int, int]


SequencingMessage = StampPassage | Stamped | ChangePassage | ChangeMade
