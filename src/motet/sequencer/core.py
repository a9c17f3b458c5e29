"""A site as one deterministic machine: `step(input, now) -> Output`.

The soft half: connections of clients, links to the other sites, timers. It decides what becomes a
fact, and expels peers whose frames do not fit what the site knows. No frame is soft, so nothing
leaves before the facts of its step, and all before them, are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from msgspec import Struct, field

from motet.errors import (
    MotetError,
    PeerError,
    ProtocolError,
    StaleState,
    UnknownBroker,
    VersionError,
)
from motet.protocol.contract import (
    Close,
    Closed,
    Dialled,
    Fact,
    Input,
    Output,
    Received,
    Reconfigured,
    Remembered,
    SetTimer,
    TimerFired,
)
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.facts import ControlReceived, NeighbourMet
from motet.protocol.link.machine import Link
from motet.protocol.link.messages import Control, ControlAck, LinkHello
from motet.protocol.room import LISTED, Objection, Peer
from motet.protocol.sequencing.facts import (
    ChangeRequested,
    GivenBack,
    InstancesForgotten,
    NumbersConfirmed,
    NumbersRequested,
    StreamsExpired,
    TopicsNamed,
)
from motet.protocol.sequencing.messages import (
    LAST_NUMBER,
    MAX_ASKED,
    MAX_REQUESTS_PER_FRAME,
    MAX_STREAMS_OF_CLIENT,
    MAX_TOPIC_CHARS,
    MAX_TOPICS_OF_STREAM,
    MAX_TOPICS_PER_FRAME,
    MAX_UNSETTLED,
    OPEN,
    UNGIVEN,
    AskNumbers,
    Changed,
    ChangeMade,
    ChangePassage,
    ChangeRequest,
    Confirm,
    Far,
    GiveBack,
    HowFar,
    Keep,
    NumberRequest,
    OrderHello,
    OrderWelcome,
    RequestsSettled,
    Stamped,
    StampPassage,
    StreamsKept,
    Timestamp,
    Told,
    TopicIds,
    TopicQuery,
)
from motet.protocol.sequencing.site import FRAME_ENTRIES
from motet.protocol.sequencing.standby import (
    PAIR,
    WITNESS,
    InStep,
    PairHello,
    PromoteRequest,
    RegisterTold,
    SiteFacts,
    SiteFactsAck,
    SiteImagePart,
    WitnessHello,
)
from motet.protocol.sequencing.state import Home, Instance
from motet.protocol.traits import TRAITS
from motet.sequencer.config import SiteConfig
from motet.sequencer.durable import DurableSite
from motet.sequencer.pair import Pair

MAX_ID_CHARS = 128
"""Of names of instances and streams."""
SWEEPS = 8
"""How often per lease, or per time that a stream is kept, the site looks for what has passed."""

SITE = "broker"
"""The kind of peer at the other end of a link."""
CLIENT = "sequenced"


class DoubtfulClaim(ProtocolError):
    """A peer knows more than we do. Either it is wrong, or another replica leads, which it knows
    and we do not."""


class ClientState(Struct):
    """An instance of a client, connected now or a while ago."""

    connection: int = 0
    heard: float = 0.0
    """When its last connection ended."""
    opened: int = 0
    """Streams, as far as they were counted: ended ones may be among them."""


class SiteCounts(Struct):
    steps: int = 0
    numbers: int = 0
    passed: int = 0
    """Timestamps of lower sites that passed."""
    voided: int = 0
    expired: int = 0
    expelled: dict[str, int] = field(default_factory=dict)


class SiteCore:
    def __init__(self, config: SiteConfig, durable: DurableSite | None = None) -> None:
        """A new site; or, with the state restored from a journal, one that continues."""
        self.config = config
        self.durable = durable or DurableSite(config)
        self._bind_state()
        self.peers: dict[int, Peer] = {}
        self.clients: dict[str, ClientState] = {}
        self.counts = SiteCounts()
        self._address = ""
        self._ahead_s = 0.0
        """Of the clock of this process: facts of a former primary may be from later."""
        self._kept: dict[str, float] = {}
        """By stream whose home this is: when it was last heard of."""
        self._since = 0.0
        """Leases and streams count from the start at the earliest."""
        self._sweeps = False
        """The timer is set."""
        self._frames: dict[type, Callable[[int, Any, Any, Output, float], None]] = {
            OrderHello: self._hello,
            TopicQuery: self._topic_query,
            NumberRequest: self._number_request,
            GiveBack: self._give_back,
            Confirm: self._confirm,
            ChangeRequest: self._change_request,
            Keep: self._keep,
            AskNumbers: self._ask,
            HowFar: self._how_far,
            LinkHello: self._link_hello,
            Control: self._control,
            ControlAck: self._control_ack,
        }
        pair = self.pair = Pair(self)
        self._frames |= {
            PairHello: pair.hello,
            SiteImagePart: pair.image_part,
            SiteFacts: pair.facts,
            SiteFactsAck: pair.acked,
            InStep: pair.in_step,
            RegisterTold: pair.register_told,
            PromoteRequest: pair.promote,
        }

    def _bind_state(self) -> None:
        """The durable state is another one: of a new process, or of an image."""
        self.site = self.durable.site
        self.links = {
            name: Link(self.config.name, ledger, self.config.identity)
            for name, ledger in self.durable.ledgers.items()
        }

    # ── the door ─────────────────────────────────────────────────────────────────────────

    def step(self, given: Input, now: float) -> Output:
        """One input, one output. A misbehaving peer loses its connection, with no other effect."""
        out = Output()
        self.counts.steps += 1
        now += self._ahead_s
        if type(given) is Received:
            connection, frame = given
            try:
                self._received(connection, frame, out, now)
            except DoubtfulClaim as error:
                self._doubt(connection, error, out, now)
            except PeerError as error:
                self._expel(connection, error, out, now)
        elif type(given) is Closed:
            self._closed(given.connection, out, now)
        elif type(given) is TimerFired:
            self._timer_fired(given, out, now)
        elif type(given) is Dialled:
            self._dialled(given, out, now)
        elif type(given) is Reconfigured:
            objection = self.objection_to(given.neighbours)
            if objection is not None:
                raise objection.exception()
        if out.close and not self.pair.is_alone:
            self._close_at_once(out, now)
        if out.persist:
            self.pair.after(out, now)
        return self._on_our_clock(out)

    def _close_at_once(self, out: Output, now: float) -> None:
        """What waits for the standby on a connection that ends is never sent: nothing would hold it
        back when we step down later, and the next primary may not know of it."""
        for close in list(out.close):
            if not close.at_once:
                self._closed(close.connection, out, now)
        out.close[:] = [close._replace(at_once=True) for close in out.close]

    def recover(self, now: float, remembered: Remembered | None = None) -> Output:
        """The first output of a new or restored site."""
        del remembered
        out = Output()
        now = self._since = self._never_back(now)
        self.pair.recover(out, now)
        self._set_sweep(out, now)
        return self._on_our_clock(out)

    def _never_back(self, now: float) -> float:
        """The time, not before that of the last fact, which a former primary may have written."""
        behind_s = max(0.0, self.durable.now - now)
        self._ahead_s += behind_s
        return now + behind_s

    def _on_our_clock(self, out: Output) -> Output:
        ahead_s = self._ahead_s
        if ahead_s and out.timers:
            out.timers = [
                SetTimer(each.key, each.at - ahead_s) if type(each) is SetTimer else each
                for each in out.timers
            ]
        return out

    def _received(self, connection: int, frame: Frame, out: Output, now: float) -> None:
        kind = type(frame)
        handle = self._frames.get(kind)
        if handle is None:
            advice = (
                "; this is a site, give the address of a witness" if kind is WitnessHello else ""
            )
            raise ProtocolError(f"a sequencer does not take {kind.__name__}{advice}")
        if (kind is OrderHello or kind is LinkHello) and not self.pair.serves:
            out.close.append(Close(connection, "NoClientsHere", self.pair.refusal()))
            return
        peer = self.peers.get(connection)
        found = "nobody" if peer is None else peer.kind
        if found not in TRAITS[kind].senders:
            raise ProtocolError(f"{kind.__name__} from {found} on this connection")
        handle(connection, peer, frame, out, now)

    def _journal(self, body: Struct, out: Output, now: float) -> None:
        """Write a fact, and carry out its effects."""
        fact = Fact(now, body)
        out.persist.append(fact)
        caused = self.durable.apply(fact)
        if caused.sends:
            sites = self.config.sites
            for position in dict.fromkeys(position for position, _ in caused.sends):
                self.links[sites[position]].transmit(out, now)
        clients = self.clients
        for client, frame in caused.answers:
            soft = clients.get(client)
            if soft is not None and soft.connection:
                out.deliver.append((soft.connection, frame))
        self._set_sweep(out, now)

    # ── for the pair ─────────────────────────────────────────────────────────────────────

    def journal_own(self, body: Struct, out: Output, now: float) -> None:
        """Write a fact of this replica alone."""
        self.mirror(Fact(now, body), out)

    def mirror(self, fact: Fact, out: Output) -> None:
        """Write a fact of the primary; its effects are the primary's."""
        out.persist.append(fact)
        self.durable.apply(fact, answers=False)

    def taken(self) -> None:
        """The state is that of an image now."""
        self._bind_state()

    def begin_to_lead(self, out: Output, now: float) -> float:
        """Returns the time, which never runs backwards."""
        self._bind_state()
        self.clients.clear()
        self._kept.clear()
        self._since = self._never_back(now)
        self._set_sweep(out, self._since)
        return self._since

    def dismiss(self, text: str, out: Output, now: float) -> None:
        """Send clients and neighbours elsewhere. What waits for the standby is never sent."""
        for connection, peer in list(self.peers.items()):
            if peer.kind in (SITE, CLIENT):
                out.close.append(Close(connection, "NoClientsHere", text, at_once=True))
                self._closed(connection, out, now)

    @property
    def own_address(self) -> str:
        return self.config.address or self._address

    # ── connections ──────────────────────────────────────────────────────────────────────

    def _expel(self, connection: int, error: MotetError, out: Output, now: float) -> None:
        name = type(error).__name__
        self.counts.expelled[name] = self.counts.expelled.get(name, 0) + 1
        out.close.append(Close(connection, name, str(error)))
        self._closed(connection, out, now)

    def _doubt(self, connection: int, error: MotetError, out: Output, now: float) -> None:
        """With a standby we cannot be sure that the peer is wrong: send it to the other replica."""
        if self.pair.is_alone:
            self._expel(connection, ProtocolError(str(error)), out, now)
            return
        out.close.append(Close(connection, "NoClientsHere", str(error), at_once=True))
        self._closed(connection, out, now)

    def _closed(self, connection: int, out: Output, now: float) -> None:
        peer = self.peers.pop(connection, None)
        if peer is None:
            return
        if peer.name in (PAIR, WITNESS):
            self.pair.closed(connection, out, now)
        elif peer.kind == SITE:
            link = self.links[peer.name]
            if link.move("closed") == "drop":
                link.drop(out)
        else:
            soft = self.clients[peer.name]
            soft.connection = 0
            soft.heard = now

    def _hello(
        self, connection: int, peer: Peer | None, hello: OrderHello, out: Output, now: float
    ) -> None:
        del peer
        if hello.version != PROTOCOL_VERSION:
            raise VersionError(
                f"{hello.client} speaks version {hello.version}, we speak {PROTOCOL_VERSION}"
            )
        _check_id(hello.client, "the name of an instance")
        client = hello.client
        if client in self.config.mates:  # they get frames before the standby has their facts
            raise ProtocolError(f"no client is named {client}")
        soft = self.clients.setdefault(client, ClientState())
        if soft.connection > connection:
            out.close.append(Close(connection, "", "a newer connection took over"))
            return
        if soft.connection:
            del self.peers[soft.connection]
            out.close.append(Close(soft.connection, "", "a newer connection took over"))
        soft.connection = connection
        self.peers[connection] = Peer(CLIENT, client)
        config = self.config
        instance = self.site.instances.get(client)
        welcome = OrderWelcome(
            config.name,
            tuple((name, self._address_of(name)) for name in config.sites),
            config.placement,
            config.elsewhere or config.sites[0],
            config.mode,
            config.lease_s,
            config.keep_s,
            config.heartbeat_s,
            0 if instance is None else instance.taken,
            self.durable.seat.founding,
        )
        out.deliver.append((connection, welcome))
        self._set_sweep(out, now)

    def _address_of(self, site: str) -> str:
        """Several are separated by commas: a site may have two replicas."""
        named = self.config.addresses.get(site, "")
        if named or site != self.config.name:
            return named
        return ",".join(dict.fromkeys(filter(None, (self.own_address, self.pair.other))))

    # ── numbers ──────────────────────────────────────────────────────────────────────────

    def _topic_query(
        self, connection: int, peer: Peer, query: TopicQuery, out: Output, now: float
    ) -> None:
        del peer
        names, ids, here = query.names, self.site.ids, self.config.name
        _check_count(names, MAX_TOPICS_PER_FRAME, "topics")
        fresh = []
        for name in dict.fromkeys(names):
            if name in ids:
                continue
            if not 0 < len(name) <= MAX_TOPIC_CHARS or not name.isprintable():
                raise ProtocolError(
                    f"{name[:MAX_TOPIC_CHARS]!r} is no topic: 1 to {MAX_TOPIC_CHARS} printable "
                    "characters"
                )
            site = self.config.site_of(name)
            if site != here:
                raise ProtocolError(f"topic {name!r} lives at {site}, not at {here}")
            fresh.append(name)
        if len(ids) + len(fresh) > self.config.most_topics:
            text = f"{here} has {len(ids)} topics, and takes at most {self.config.most_topics}"
            out.close.append(Close(connection, "NotOffered", text))
            self._closed(connection, out, now)
            return
        if fresh:
            self._journal(TopicsNamed(tuple(fresh)), out, now)
        out.deliver.append((connection, TopicIds({name: ids[name] for name in names})))

    def _number_request(
        self, connection: int, peer: Peer, request: NumberRequest, out: Output, now: float
    ) -> None:
        site, client, first, topics = self.site, peer.name, request.first, request.topics
        _check_count(topics, MAX_REQUESTS_PER_FRAME, "requests")
        self._check_own(topics)
        if not 0 < first <= LAST_NUMBER:
            raise ProtocolError(f"request {first} is none: they count from 1")
        instance = site.instances.get(client)
        if instance is None:
            taken = settled = first - 1
        else:
            taken, settled = instance.taken, instance.settled
        _check_confirmed(instance, request.confirmed, taken)
        if first > taken + 1:  # a frame before it is missing: the client repeats from there
            if request.confirmed > settled:
                self._journal(NumbersConfirmed(client, request.confirmed), out, now)
            return
        again = taken + 1 - first
        if again:
            assert instance is not None
            for at, topic in enumerate(topics[:again], first):
                record = instance.unsettled.get(at)
                if record is not None and record.stamp.topic != topic:
                    raise DoubtfulClaim(
                        f"request {at} was for topic {record.stamp.topic}, and now is for {topic}"
                    )
        fresh = len(topics) - again
        if fresh > 0:
            confirmed = max(settled, request.confirmed)
            if taken + fresh - confirmed > MAX_UNSETTLED:
                raise ProtocolError(
                    f"{taken + fresh - confirmed} requests are not confirmed; at most "
                    f"{MAX_UNSETTLED} may be"
                )
            self.counts.numbers += fresh
        if fresh > 0 or request.confirmed > settled:
            fact = NumbersRequested(client, first, topics, request.confirmed)
            self._journal(fact, out, now)
            return
        for _, frame in site.answers_again(client, first, len(topics)):
            out.deliver.append((connection, frame))

    def _check_own(self, topics: Iterable[int]) -> None:
        names = self.site.names
        if not names.keys() >= set(topics):
            wrong = next(topic for topic in topics if topic not in names)
            sites = self.config.sites
            if wrong >= 0 and wrong % len(sites) != self.site.position:
                home = sites[wrong % len(sites)]
                raise ProtocolError(f"topic {wrong} lives at {home}, not at {self.config.name}")
            raise DoubtfulClaim(f"topic {wrong} is unknown at {self.config.name}: ask for its id")

    def _confirm(
        self, connection: int, peer: Peer, confirm: Confirm, out: Output, now: float
    ) -> None:
        client, upto = peer.name, confirm.upto
        instance = self.site.instances.get(client)
        if instance is not None:
            _check_confirmed(instance, upto, instance.taken)
            if upto > instance.settled:
                self._journal(NumbersConfirmed(client, upto), out, now)
                return
            upto = instance.settled
        out.deliver.append((connection, RequestsSettled(upto)))

    def _give_back(
        self, connection: int, peer: Peer, back: GiveBack, out: Output, now: float
    ) -> None:
        client, requests = peer.name, back.requests
        _check_count(requests, MAX_REQUESTS_PER_FRAME, "requests")
        instance = self.site.instances.get(client)
        if instance is None:
            out.deliver.append((connection, RequestsSettled(0)))
            return
        if not all(0 < request <= instance.taken for request in requests):
            raise ProtocolError(f"a request is given back, but only {instance.taken} were made")
        left = tuple(sorted({each for each in requests if each > instance.settled}))
        if left:
            self._journal(GivenBack(client, left), out, now)
        else:
            out.deliver.append((connection, RequestsSettled(instance.settled)))

    # ── streams ──────────────────────────────────────────────────────────────────────────

    def _change_request(
        self, connection: int, peer: Peer, request: ChangeRequest, out: Output, now: float
    ) -> None:
        stream, number, topics = request.stream, request.number, request.topics
        _check_id(stream, "the name of a stream")
        _check_count(topics, MAX_TOPICS_PER_FRAME, "topics")
        if not all(0 <= topic <= LAST_NUMBER for topic in topics) or number < 1:
            raise ProtocolError("topics and changes are not numbered like that")
        if len(set(topics)) < len(topics):
            raise ProtocolError("a topic is named twice")
        home = self.site.homes.get(stream)
        if (home is None and number > 1) or (home is not None and home.ending):
            text = f"{stream} is unknown at {self.config.name}, or has expired"
            out.deliver.append((connection, Changed(stream, number, {}, "Expired", text)))
            return
        if home is None:
            home = Home(peer.name)
        elif home.client != peer.name:
            raise ProtocolError(f"stream {stream} is of another client")
        if number > (home.pending or home.done) + 1 or (home.pending and number > home.pending):
            raise DoubtfulClaim(
                f"change {number} of {stream} comes before change {home.done + 1} is complete"
            )
        self._kept[stream] = now
        if number == home.done:
            out.deliver.append((connection, Changed(stream, number, home.cut)))
        elif number == home.done + 1 and not home.pending:
            self._begin_change(connection, home, request, out, now)

    def _begin_change(
        self, connection: int, home: Home, request: ChangeRequest, out: Output, now: float
    ) -> None:
        stream, number, topics = request.stream, request.number, request.topics
        if number > 1 and not home.topics:
            error, text = "Expired", f"{stream} has ended"
        elif len(self.site.named(home, topics) if home.ever else topics) > MAX_TOPICS_OF_STREAM:
            error, text = "NotOffered", f"a stream has at most {MAX_TOPICS_OF_STREAM} topics"
        elif number == 1 and self._has_many_streams(home.client):
            most = f"a client has at most {MAX_STREAMS_OF_CLIENT} streams"
            error, text = "NotOffered", f"{most} at {self.config.name}"
        else:
            self._journal(ChangeRequested(home.client, stream, number, topics), out, now)
            return
        out.deliver.append((connection, Changed(stream, number, {}, error, text)))

    def _has_many_streams(self, client: str) -> bool:
        """Ended streams are remembered for a while, and do not count."""
        soft = self.clients[client]
        if soft.opened >= MAX_STREAMS_OF_CLIENT:
            homes = self.site.homes.values()
            soft.opened = sum(
                each.client == client and bool(each.topics or each.pending) for each in homes
            )
        soft.opened += 1
        return soft.opened > MAX_STREAMS_OF_CLIENT

    def _keep(self, connection: int, peer: Peer, keep: Keep, out: Output, now: float) -> None:
        expired = []
        for stream in dict.fromkeys(keep.streams):
            home = self.site.homes.get(stream)
            if home is None or home.ending or home.client != peer.name:
                expired.append(stream)
            else:
                self._kept[stream] = now
        out.deliver.append((connection, StreamsKept(tuple(expired))))

    def _ask(self, connection: int, peer: Peer, ask: AskNumbers, out: Output, now: float) -> None:
        del peer
        topic, site = ask.topic, self.site
        _check_count(ask.numbers, MAX_ASKED, "numbers")
        self._check_own((topic,))
        answers: list[tuple[int, int, Timestamp | None]] = []
        entries, refuted = 0, False
        for number in ask.numbers:
            if not 0 < number <= LAST_NUMBER:
                raise ProtocolError(f"{number} is no number of an event: they count from 1")
            state, stamp = site.became(topic, number)
            refuted = refuted or state == UNGIVEN
            answers.append((number, state, stamp))
            entries += 0 if stamp is None else len(stamp.entries)
            if entries > FRAME_ENTRIES:
                out.deliver.append((connection, Told(topic, tuple(answers))))
                answers, entries = [], 0
        if answers:
            out.deliver.append((connection, Told(topic, tuple(answers))))
        if refuted and not self.pair.is_alone:
            # Another replica may lead, and have given it: then this fact, and so the answer,
            # never leave.
            self._journal(TopicsNamed(()), out, now)

    def _how_far(self, connection: int, peer: Peer, query: HowFar, out: Output, now: float) -> None:
        del peer, now
        _check_count(query.topics, MAX_TOPICS_PER_FRAME, "topics")
        self._check_own(query.topics)
        far = self.site.far
        out.deliver.append((connection, Far({topic: far[topic] for topic in query.topics})))

    # ── links ────────────────────────────────────────────────────────────────────────────

    def _dialled(self, news: Dialled, out: Output, now: float) -> None:
        connection, neighbour = news
        if neighbour == PAIR:
            self.pair.dialled(connection, out, now)
            return
        if neighbour == WITNESS:
            self.pair.met_witness(connection, out, now)
            return
        link = self.links.get(neighbour) if self.pair.serves else None
        if link is None:
            text = f"{neighbour} is not in the line of {self.config.name}"
            out.close.append(Close(connection, "", text))
            return
        self._bind(connection, link, out)
        link.move("dialled")
        link.greet(out, now, heard=False)

    def _bind(self, connection: int, link: Link, out: Output) -> None:
        old = link.soft.connection
        if old:
            self.peers.pop(old, None)
            out.close.append(Close(old, "", "a newer connection took over"))
        self.peers[connection] = Peer(SITE, link.neighbour)
        link.open(connection)

    def _link_hello(
        self, connection: int, peer: Peer | None, hello: LinkHello, out: Output, now: float
    ) -> None:
        config, them = self.config, hello.broker
        if hello.version != PROTOCOL_VERSION:
            raise VersionError(
                f"{them} speaks version {hello.version}, we speak {PROTOCOL_VERSION}"
            )
        link = self.links.get(them)
        if link is None:
            line = ", ".join(config.sites)
            raise UnknownBroker(f"{them!r} is not in the line of {config.name}: {line}")
        if hello.root != config.identity:
            raise ProtocolError(
                f"{them} was founded as part of {hello.root!r}, {config.name} as part of "
                f"{config.identity!r}: all sites need the same line, placement and mode"
            )
        if peer is not None and peer.name != them:
            raise ProtocolError(f"dialled {peer.name}, but {them} answered")
        if peer is None and connection < link.soft.connection:
            out.close.append(Close(connection, "", "a newer connection took over"))
            return
        known_here = link.up and peer is not None
        met = link.ledger.record.incarnation
        if known_here and met != hello.incarnation:
            raise ProtocolError(f"{them} changed its life while connected")
        try:
            objection = None if known_here else self._objection(link, hello)
        except StaleState as problem:
            if self.pair.is_alone:
                raise
            raise DoubtfulClaim(str(problem)) from None
        if objection is not None and met == hello.incarnation and self._has_two(them):
            # It may have been primary, and lack what its successor has taken.
            out.close.append(Close(connection, "NoClientsHere", objection.text, at_once=True))
            self._closed(connection, out, now)
            return
        if objection is not None:
            self._expel(connection, objection.exception(), out, now)
            link.refuse(objection.text)
            return
        if peer is None:
            self._bind(connection, link, out)
        if not met:
            self._journal(NeighbourMet(them, hello.incarnation), out, now)
        link.move("hello")
        if not hello.heard:
            link.greet(out, now, heard=True)
        if not known_here:
            link.resume(hello, out, now)

    def _has_two(self, site: str) -> bool:
        return "," in self.config.addresses.get(site, "")

    def _objection(self, link: Link, hello: LinkHello) -> Objection | None:
        met = link.ledger.record.incarnation
        if met and hello.incarnation > met:
            return Objection(
                "StaleState",
                f"{hello.broker} has lost its state: it comes in life {hello.incarnation}, and "
                f"{self.config.name} knows it in life {met}; restore its folder, or found the "
                "line anew",
            )
        return link.objection(hello)

    def _control(
        self, connection: int, peer: Peer, control: Control, out: Output, now: float
    ) -> None:
        del connection
        link = self.links[peer.name]
        if link.move("control") == "ignore":
            return
        fresh = link.ledger.fresh(control)
        if fresh:
            for message in fresh:
                self._check_message(peer.name, message)
            self._journal(ControlReceived(peer.name, control), out, now)
        link.acknowledge(out)

    def _check_message(self, them: str, message: object) -> None:
        """Raise `ProtocolError` for a message that no site of this line sends to this one."""
        here, count, names = self.site.position, len(self.config.sites), self.site.names
        most = count * self.config.most_topics
        if isinstance(message, StampPassage):
            first = message.first
            fits = (
                0 <= first < here
                and len(message.lasts) == len(message.stamps)
                and all(
                    here <= last < count and first == stamp.topic % count and stamp.topic < most
                    for last, stamp in zip(message.lasts, message.stamps, strict=True)
                )
            )
            self.counts.passed += len(message.stamps)
        elif isinstance(message, Stamped):
            fits = all(stamp.topic in names for stamp in message.stamps)
        elif isinstance(message, ChangePassage):
            sites = {topic % count for topic in message.named}
            fits = 0 <= message.home < count and bool(sites) and min(sites) <= here <= max(sites)
            fits = fits and max(message.numbers, default=0) < most
        else:
            fits = isinstance(message, ChangeMade)
        if not fits:
            raise ProtocolError(f"{them} sent {message!r:.200}, which makes no sense here")

    def _control_ack(
        self, connection: int, peer: Peer, ack: ControlAck, out: Output, now: float
    ) -> None:
        del connection
        link = self.links[peer.name]
        if link.move("ack") == "trim":
            link.acknowledged(ack, out, now)

    # ── timers ───────────────────────────────────────────────────────────────────────────

    def _timer_fired(self, news: TimerFired, out: Output, now: float) -> None:
        word = news.key[0]
        if word == "pair":
            self.pair.tick(out, now)
        elif not self.durable.seat.leads:
            self._sweeps = False
        elif word == "link" and news.key[1] in self.links:
            self.links[str(news.key[1])].alarm(out, now)
        elif word == "sweep":
            self._sweeps = False
            self._sweep(out, now)
            self._set_sweep(out, now)

    def _set_sweep(self, out: Output, now: float) -> None:
        if not self._sweeps and (self.clients or self.site.instances or self.site.homes):
            self._sweeps = True
            every_s = min(self.config.lease_s, self.config.keep_s) / SWEEPS
            out.timers.append(SetTimer(("sweep",), now + every_s))

    def _sweep(self, out: Output, now: float) -> None:
        """Clocks decide only what happens here: numbers become void, streams expire."""
        config, site = self.config, self.site
        overdue = site.overdue(config.lease_s, self._since, now)
        if overdue is not None:
            self.counts.voided += sum(len(requests) for _, requests in overdue.requests)
            self._journal(overdue, out, now)
        kept = self._kept = {name: at for name, at in self._kept.items() if name in site.homes}
        expired = tuple(
            stream
            for stream, home in site.homes.items()
            if not home.pending and kept.get(stream, self._since) + config.keep_s <= now
        )
        if expired:
            self.counts.expired += len(expired)
            self._journal(StreamsExpired(expired), out, now)
        away_s = max(config.lease_s, config.keep_s)
        for client in [
            client
            for client, soft in self.clients.items()
            if not soft.connection and soft.heard + away_s <= now
        ]:
            del self.clients[client]
        if self._since + away_s <= now:
            forgotten = tuple(
                client
                for client in site.instances
                if client not in self.clients and site.idle(client)
            )
            if forgotten:
                self._journal(InstancesForgotten(forgotten), out, now)

    # ── looking in ───────────────────────────────────────────────────────────────────────

    def listens_at(self, address: str) -> None:
        self._address = address

    def done_with(self) -> int:
        return 0

    def outlives(self, error: str) -> bool:
        return error != StaleState.__name__ or not self.pair.is_alone

    def withheld(self) -> int:
        return self.pair.withheld()

    def acknowledged(self) -> dict[str, int]:
        """Messages acknowledged by each site, which a snapshot need not contain."""
        return {name: ledger.confirmed for name, ledger in self.durable.ledgers.items()}

    def objection_to(self, neighbours: tuple[str, ...]) -> Objection | None:
        if set(neighbours) == set(self.config.neighbours):
            return None
        text = f"the line of {self.config.name} is {', '.join(self.config.sites)} for good"
        return Objection("MisuseError", text)

    def status(self, clients: tuple[str, ...] = ()) -> dict[str, Any]:
        """For operators: plain values only."""
        del clients
        config, site = self.config, self.site
        return {
            "site": config.name,
            "incarnation": self.durable.config.incarnation,
            "line": list(config.sites),
            "mode": config.mode,
            "lease_s": config.lease_s,
            "keep_s": config.keep_s,
            "moment": site.moment,
            "topics": len(site.ids),
            "topics_above": sum(last > site.position for last in site.groups.top.values()),
            "numbers": self.counts.numbers,
            "passed": self.counts.passed,
            "voided": self.counts.voided,
            "expired": self.counts.expired,
            "unsettled": sum(len(each.unsettled) for each in islice(self._instances(), LISTED)),
            "remembered": len(site.history),
            "instances": len(site.instances),
            "connected": sum(bool(soft.connection) for soft in self.clients.values()),
            "streams": site.streams,
            "noted": len(site.groups.noted),
            "expelled": dict(self.counts.expelled),
            "pair": self.pair.account(),
            "links": {
                name: {
                    "phase": link.condition,
                    "refusal": link.soft.refusal,
                    "sent": link.ledger.record.sent,
                    "received": link.ledger.record.received,
                    "unacknowledged": len(link.ledger.outbox),
                    "round_trip_s": round(link.soft.round_trip_s, 6),
                }
                for name, link in self.links.items()
            },
        }

    def _instances(self) -> Iterable[Any]:
        return self.site.instances.values()

    def validate(self) -> None:
        self.durable.validate()


def _check_count(items: tuple[Any, ...], most: int, what: str) -> None:
    if len(items) > most:
        raise ProtocolError(f"{len(items)} {what} in one frame; at most {most} are taken")


def _check_confirmed(instance: Instance | None, upto: int, taken: int) -> None:
    if not 0 <= upto <= taken:
        raise DoubtfulClaim(f"request {upto} is confirmed, but only {taken} were made")
    for request in () if instance is None else instance.on_the_way:
        if request > upto:
            break
        if instance is not None and instance.unsettled[request].state == OPEN:
            raise DoubtfulClaim(f"request {request} is confirmed, but was never answered")


def _check_id(text: str, what: str) -> None:
    if not 0 < len(text) <= MAX_ID_CHARS or not text.isprintable():
        raise ProtocolError(f"{text[:MAX_ID_CHARS]!r} is not {what}: 1 to {MAX_ID_CHARS} printable")
