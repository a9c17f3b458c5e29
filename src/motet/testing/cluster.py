"""A whole overlay in virtual time: brokers, clients, network, faults, and one random generator.

One agenda, one `random.Random`, no wall clock, no set order: the same seed gives the same run, step
for step, in any process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from motet.audit.records import ADDITIONS, EventRecord, SessionRecord
from motet.broker.core.durable import Durable
from motet.errors import InvariantError
from motet.model.coverage import shown_covering
from motet.model.ids import is_newer
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Input
from motet.protocol.session.messages import ClientHello, Done
from motet.testing.brokers import Cells, SimulatedBroker
from motet.testing.checkers import effective
from motet.testing.checkers.result import BrokerState
from motet.testing.clients import SimulatedClient
from motet.testing.clock import Agenda
from motet.testing.durable_clients import Lasting
from motet.testing.faults import FaultMenu, Mishaps, Rewiring
from motet.testing.history import History, OpeningRecord, finish
from motet.testing.hosted import Hosting
from motet.testing.movers import Relocations, Whereabouts
from motet.testing.topology import Tree, edge_of
from motet.testing.trace import Trace
from motet.testing.transactions import Dealing
from motet.testing.transport import End, Network, Wire
from motet.testing.workload import (
    Workload,
    draw_cells,
    draw_deals,
    draw_delivery,
    draw_moves,
    draw_overlay,
    draw_plan,
    draw_tree,
)

QUIET_S = 400.0
"""Virtual time within which everything must come to rest once faults have stopped."""
NOTHING: Mapping[str, Any] = MappingProxyType({})
LOOKS_FOR_A_PUBLISHER = 1
"""A publisher has mostly advertised something; not always, since refusals must be tested."""
PROBES = 3
CLIENTS_IN_CELLS = 0.05
"""The chance that a client may connect to any broker if some are cells."""
SNAPSHOT_FIRST = 0.3
"""The chance that a broker takes a snapshot just before it crashes."""
PROBE_S = 0.005
"""Time between two probes: long enough that no queue overflows."""


class Halt(Exception):
    """A core is broken; further steps would be meaningless."""


class Cluster:
    def __init__(
        self,
        seed: int,
        menu: FaultMenu,
        *,
        needs: Mapping[str, Any] = NOTHING,
        tree: Tree | None = None,
        story: bool = False,
        crash_at: int | None = None,
        fault: str = "kill",
    ) -> None:
        """`needs` overrides what the seed would have drawn for the plan of the run, and `tree` the
        overlay. The broker that takes step number `crash_at`, counted over all brokers, dies in
        that step, or whatever else is the `fault`."""
        self.seed = seed
        self.random = Random(seed)
        self.menu = menu
        self.tree = tree or draw_tree(self.random)
        sure = draw_delivery(seed) if menu.sure else {}
        deals = draw_deals(seed, self.tree) if menu.deals else {}
        moves = draw_moves(seed, menu.deals) if menu.moving else {}
        drawn = {**draw_overlay(seed), **sure, **deals, **moves, **needs}
        if menu.cells and "mates" not in drawn:
            drawn |= {**draw_cells(seed, self.tree, menu.cells), **needs}
        self.plan = replace(draw_plan(self.random), **drawn)
        self.agenda = Agenda()
        self.trace = Trace(story=story)
        self.faults: Counter[str] = Counter()
        self.crash_at = crash_at
        self.fault = fault
        self.broker_steps = 0
        self.steps_of_moves: list[int] = []
        """With `crash_at`: the steps in which a broker gets, decides or sends something of a
        move."""
        self._sync_s = self.menu.sync_s * self.plan.sync
        hop_s = self.plan.hop_s[1] + self._sync_s
        if self.plan.mates:  # heads wait for mates, at most this long
            hop_s += BrokerConfig("").mirror_s
        self.history = History(self.tree, self.plan.covering, hop_s, root=self.plan.root)
        self.network = Network(self.agenda, self.random, self.faults, self.plan.hop_s)
        self.workload = Workload(self.random, self.plan)
        self.bodies: dict[bytes, EventRecord] = {}
        self.epochs: set[str] = set()
        self.validated = 0
        self.replayed = 0
        self.effective = effective.Checker(self.history, self.tables_of)
        self.clients: list[SimulatedClient] = []
        self.lasting = Lasting(self, seed)
        self.wires: dict[tuple[str, str], Wire] = {}
        self.brokers = {
            name: SimulatedBroker(self, name, self.plan.lease_s) for name in self.tree.brokers
        }
        if self.plan.sure:  # clocks matter only with pubends
            for name, broker in self.brokers.items():
                broker.clock.ahead_s = Random(f"{name} {seed}").uniform(0.0, self.plan.skew_s)
        for edge in self.tree.edges:
            wire = self.network.wire(edge, menu, self.history.disturbed[edge])
            wire.trouble.begin(0.0)
            self.wires[edge] = wire
            one, two = edge
            self.brokers[one].wires[two] = self.brokers[two].wires[one] = wire
        self.cells = Cells(self)
        self.mishaps = Mishaps(self)
        self.rewiring = Rewiring(self, seed)
        self.dealing = Dealing(self, seed)
        self.relocations = Relocations(self, seed)
        self.whereabouts = Whereabouts(self)
        self.hosting = Hosting(self, seed)
        self.acting = True

    # ── the stages of a run ──────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Chaos, quiet, probes. The history is complete afterwards."""
        try:
            self.chaos()
            self._quiet("after the faults")
            if self.lasting.replace_outdated():
                self.history.settled_at = inf
                self._quiet("after outdated processes were replaced")
            self._conclude()
            self._note_what_lives()
            self._probe()
            self.hosting.conclude()
        except Halt:
            self.history.odd("invariants", "the run ended early")

    def _conclude(self) -> None:
        """Ask for the outcome of every transaction, if a client is connected that can ask."""
        if self.plan.deal_s:
            self.dealing.ask_all()
            self._quiet("after the questions")
            finish(self.history)

    def farewell(self) -> None:
        """Half of the clients leave permanently; their entries must be gone everywhere."""
        try:
            self.trace.note(self.agenda.now, "half of the clients leave")
            for client in self._living(hosted=False)[::2]:
                client.goodbye(forget=True)
            self._quiet("after the farewell")
            self._note_what_lives()
        except Halt:
            self.history.odd("invariants", "the run ended early")

    def chaos(self) -> None:
        self.trace.note(0.0, self._cast())
        for broker in self.brokers.values():
            broker.start(remember=False)
        for mate in self.cells.mates.values():
            mate.start()
        for _ in range(self.plan.clients):
            self.arrive()
        self.agenda.after(0.05, self._act)
        self.mishaps.begin()
        self.rewiring.begin()
        self.dealing.begin()
        self.relocations.begin()
        self.hosting.begin()
        self.agenda.run(self.plan.chaos_s)
        self.trace.note(self.agenda.now, "faults stop, links heal")
        self.mishaps.stop()
        self.rewiring.stop()
        self.lasting.return_all()
        if self.plan.fair_s:
            self.agenda.run(self.agenda.now + self.plan.fair_s)
        self.acting = False

    def _cast(self) -> str:
        rough = [f"{'-'.join(wire.edge)}" for wire in self.wires.values() if wire.rates]
        return (
            f"the overlay: {' '.join('-'.join(edge) for edge in self.tree.edges)}; "
            f"covering {shown_covering(self.plan.covering)}; "
            f"leases of {self.plan.lease_s:g} s; "
            f"rough links: {', '.join(rough) or 'none'}"
        )

    def _quiet(self, when: str) -> None:
        bound = self.agenda.now + QUIET_S
        if not self.agenda.run(bound):
            self.history.odd("settles", f"not at rest {QUIET_S:g} s {when}")
        for client in self.clients:
            if not client.over and not client.open:
                self.history.odd("settles", f"{client.name} has no session {when}")
        for name, broker in self.brokers.items():
            self.validated += 1
            try:
                if broker.core is not None:
                    broker.core.validate()
            except InvariantError as problem:
                self.history.odd("invariants", f"{name} at rest: {problem}")
        self.cells.inspect(when)
        self.history.settled_at = min(self.history.settled_at, self.agenda.now)

    def _note_what_lives(self) -> None:
        self.history.present = {client.instance for client in self._living()}
        self.history.living = [
            client.session for client in self._living() if client.session is not None
        ]
        self.history.places = {
            (client.name, client.machine.epoch or ""): client.home for client in self._living()
        }

    def _probe(self) -> None:
        """Everything is at rest: every event published now must reach all its subscribers."""
        self.trace.note(self.agenda.now, "probes")
        for _ in range(PROBES):
            for client in self._living(hosted=False):
                self._publish(client)
                self.agenda.run(self.agenda.now + PROBE_S)
        self._quiet("after the probes")

    def _living(self, *, hosted: bool = True) -> list[SimulatedClient]:
        return [each for each in self.clients if each.open and (hosted or not each.is_hosted)]

    # ── actions of clients ───────────────────────────────────────────────────────────────

    def arrive(self, name: str = "", home: str = "") -> SimulatedClient:
        """A new client, or a new process of a known one."""
        instance = len(self.clients)
        home = home or self.random.choice(self._homes())
        application = self.lasting.application(name, instance, home)
        client = SimulatedClient(self, instance, name or f"c{instance}", home, application)
        self.clients.append(client)
        client.connect()
        if client.process is not None:
            client.process.begin()
        else:  # its application reads from the beginning
            client.machine.ready()
        return client

    def _homes(self) -> Sequence[str]:
        """Mostly no cells: streams pass through the mates of a cell that has no clients."""
        plain = [name for name in self.tree.brokers if name not in self.plan.mates]
        few = len(plain) < 2 or not self.plan.mates
        if few or self.random.random() < CLIENTS_IN_CELLS:
            return self.tree.brokers
        return plain

    def able(self) -> list[SimulatedClient]:
        """Clients whose application runs in a process of its own, connected or not."""
        return [c for c in self.clients if not (c.over or c.paused or c.is_hosted)]

    def _act(self) -> None:
        if not self.acting:
            return
        self.agenda.after(self.workload.next_action_s(), self._act)
        action = self.workload.draw_action()
        able = self.able()
        if action == "arrive" or not able:
            if len(able) < 14:
                self.arrive()
            return
        client = self.random.choice(able)
        if action == "publish":
            for _ in range(LOOKS_FOR_A_PUBLISHER):
                if client.standing("advertise"):
                    break
                client = self.random.choice(able)
            self._publish(client)
        elif action in ADDITIONS:
            client.ask(
                action,  # type: ignore[arg-type]
                self.workload.draw_filter(action),
                wait=self.workload.draw_wait(),
                timeout_s=self.workload.draw_timeout_s(),
                since=self.lasting.draw_since(client, action),
            )
        elif action == "goodbye":
            client.goodbye(forget=self.lasting.forgets())
            self.lasting.return_later(client)
        else:
            self._take_back(client, action)

    def _publish(self, client: SimulatedClient) -> None:
        if client.machine.can_publish:
            advertised = [
                filter
                for handle in client.standing("advertise")
                if (filter := client.operations[handle].filter) is not None
            ]
            client.publish(self.workload.draw_event(advertised))

    def _take_back(self, client: SimulatedClient, action: str) -> None:
        standing = client.standing("subscribe" if action == "unsubscribe" else "advertise")
        if standing:
            client.take_back(
                self.random.choice(standing),
                wait=self.workload.draw_wait(),
                timeout_s=self.workload.draw_timeout_s(),
            )

    # ── reports of brokers ───────────────────────────────────────────────────────────────

    def sync_s(self) -> float:
        return self._sync_s * self.random.random() if self._sync_s else 0.0

    def tables_of(self, broker: str) -> BrokerState | None:
        return self.brokers[broker].core

    def answer_leaves(self, end: End, frame: Done, made_at: float) -> None:
        """A broker says that an operation is effective: at this instant it must be true. It made
        the answer before, if that had to wait for the disk."""
        client = end.peer.owner
        assert isinstance(client, SimulatedClient)
        if client.session is None or self._ends_at_once(end, client.session):
            return
        operation = client.session.operations.get(frame.sequence)
        asking = client.session.asks.get(frame.sequence)
        if asking is not None:
            deal = asking.deal
            if asking.kind in ("execute", "commit") and deal and frame.value == deal.id:
                ended = [deed.operation for deed in deal.endings()]
                for each in deal.additions():
                    if each not in ended:
                        self.effective.claimed(each, self.agenda.now)
        elif operation is not None and operation.kind in ADDITIONS:
            self.effective.claimed(operation, self.agenda.now, made_at)
        elif operation is not None:
            self.effective.removed(operation, self.agenda.now)

    def _ends_at_once(self, end: End, session: SessionRecord) -> bool:
        """Has the same frame that made an operation effective told of a newer session?"""
        broker = end.owner
        if not isinstance(broker, SimulatedBroker) or broker.core is None:
            return False
        return (session.client, session.epoch) not in broker.core.durable.routing.state.clients

    def check_replay(
        self, name: str, position: int, expected: str, before: Durable, replayed: Durable
    ) -> None:
        """The digest after the last fact must be the same. Outboxes are not in it: what a broker
        would still have retransmitted when it died, it must retransmit after replay."""
        self.replayed += 1
        for neighbour, ledger in before.ledgers.items():
            again = replayed.ledgers.get(neighbour)
            if again is not None and not ledger.is_kept_by(again):
                self.history.odd(
                    "replay",
                    f"{name} at {self.agenda.now:.4f} s: replaying its {position} facts loses "
                    f"some of what {neighbour} did not acknowledge",
                )
        if replayed.digest() != expected:
            self.history.odd(
                "replay",
                f"{name} at {self.agenda.now:.4f} s: replaying its {position} facts gives "
                "another state than it had after the last of them",
            )

    def given_up(self, broker: str, neighbour: str) -> None:
        """A broker has forgotten what came from a neighbour, and starts from scratch with it."""
        self.faults["given_up"] += 1
        self.history.amnesia[edge_of(broker, neighbour)].touch(self.agenda.now, self.agenda.now)
        self.trace.note(self.agenda.now, f"{broker} gives {neighbour} up")

    def strike_now(self, broker: SimulatedBroker, given: Input) -> None:
        """The run has reached the step that its fault was meant for."""
        if self.random.random() < SNAPSHOT_FIRST:
            broker.take_snapshot()
        self.mishaps.at_step(self.fault, broker, given)

    def kill_broker(self, broker: SimulatedBroker) -> None:
        self.trace.note(self.agenda.now, f"{broker.name} dies")
        self.history.disturbed[broker.name].begin(self.agenda.now)
        self.whereabouts.copies.down(broker.name)
        self.hosting.down(broker.name)
        broker.kill()

    def broken(self, name: str, given: Input | str, problem: Exception) -> None:
        self.history.odd(
            "invariants", f"{name} broke on {given}: {type(problem).__name__}: {problem}"
        )
        raise Halt from problem

    def runaway(self) -> None:
        self.history.odd("settles", f"no end after {self.trace.steps} steps")
        raise Halt

    def troubled(self, end: End) -> None:
        """The connection of a client is dead, whether or not the client knows it."""
        client = end.peer.owner
        if isinstance(client, SimulatedClient):  # else it is an operator
            self.history.disturbed[client.instance].begin(self.agenda.now)

    def gave_up(self, client: SimulatedClient) -> None:
        """A client was told that its session is on its way, but it never came."""
        if not self.history.forgot(self.tree.brokers, 0.0):
            self.history.odd("moves", f"the session of {client.name} has never arrived")

    def overflowed(self, end: End) -> None:
        client = end.peer.owner
        assert isinstance(client, SimulatedClient)
        self.history.disturbed[client.instance].touch(self.agenda.now, self.agenda.now)

    def greeted(self, broker: SimulatedBroker, connection: int, hello: ClientHello) -> bool:
        """A broker has heard a hello. If it opened a session, the newest session with this client
        id remains, and all others may end from this instant on. False if it has not answered."""
        soft = broker.core.clients.get(hello.client) if broker.core is not None else None
        if soft is None or soft.connection != connection:
            return False
        self._opened(broker, connection, hello, soft.epoch)
        return True

    def _opened(
        self, broker: SimulatedBroker, connection: int, hello: ClientHello, epoch: str
    ) -> None:
        newcomer, now = broker.ends[connection].peer.owner, self.agenda.now
        assert isinstance(newcomer, SimulatedClient)
        if epoch == hello.resume:
            newcomer.resumes()
            return
        if self.lasting.adopted(newcomer, epoch, broker.name):
            return
        namesakes = [c for c in self.clients if c.name == hello.client and c is not newcomer]
        present = tuple(
            c.machine.epoch
            for c in namesakes
            if c.open and c.outdone_at == inf and c.machine.epoch is not None
        )
        self.history.openings.append(
            OpeningRecord(
                newcomer.name,
                newcomer.instance,
                epoch,
                broker.name,
                now,
                hello.resume,
                present,
            )
        )
        newcomer.begins(epoch)
        for other in namesakes:
            # The session opened for it last may have been lost with its broker: then the one
            # before it counts.
            if any(is_newer(epoch, than=e) for e in (other.opened, other.machine.epoch) if e):
                other.outdone(now)
            if other.opened and is_newer(other.opened, than=epoch):
                newcomer.outdone(now)

    def audit_journal(self) -> None:
        """Audit one random broker per run: replaying costs as much as the run itself."""
        self.random.choice(list(self.brokers.values())).audit_journal()
