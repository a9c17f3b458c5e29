"""The twin of an event service: it delays, reorders and doubles messages, loses some if it may,
fails calls, and disconnects its clients.

A lossless one keeps what a disconnected client has subscribed to until it is back; at another one
all of that is lost. Messages of one publisher do not keep their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from motet.testing.ordering.world import World

TIMEOUT_S = 5.0
"""How long a call waits for a service that is away, before it raises."""
AWAY = "UnavailableError: the service did not answer"
REFUSED = "UnavailableError: the call failed"


class ServiceClient(Protocol):
    """One process that uses the service."""

    name: str

    def called(self, ticket: int, error: str) -> None:
        """A call has returned, or raised."""

    def notify(self, topic: str, body: bytes) -> None:
        """A message arrives."""

    def interrupted(self) -> None:
        """The connection was lost, and is back with its subscriptions."""


class Attachment:
    """The connection of one process."""

    def __init__(self, client: ServiceClient) -> None:
        self.client = client
        self.topics: dict[str, None] = {}
        self.last_at = 0.0
        """When its last change of subscriptions is at the service: these keep their sequence."""
        self.up = True
        self.over = False
        self.kept: list[tuple[str, bytes]] = []
        """Messages for a client that is away."""
        self.waiting: list[tuple[int, str, str, bytes]] = []
        """Calls that wait for the connection."""


class SimulatedService:
    def __init__(self, world: World) -> None:
        self._world = world
        self._attached: dict[str, Attachment] = {}
        """By name of the process."""
        self.slow_topics: dict[str, float] = {}
        """Until when messages of a topic are slow."""
        self.held: dict[tuple[str, str], list[bytes]] = {}
        """By process and topic: messages that wait until they are released."""
        self.faultless = False

    def attach(self, client: ServiceClient) -> None:
        self._attached[client.name] = Attachment(client)

    def detach(self, client: ServiceClient) -> None:
        """Its process has ended."""
        gone = self._attached.pop(client.name, None)
        if gone is not None:
            gone.over = True

    # ── calls ────────────────────────────────────────────────────────────────────────────

    def call(self, client: ServiceClient, ticket: int, kind: str, topic: str, body: bytes) -> None:
        attached = self._attached[client.name]
        if attached.up:
            self._begin(attached, ticket, kind, topic, body)
            return
        attached.waiting.append((ticket, kind, topic, body))
        self._world.agenda.after(TIMEOUT_S, self._give_up, attached, ticket)

    def _give_up(self, attached: Attachment, ticket: int) -> None:
        waiting = [call for call in attached.waiting if call[0] == ticket]
        if waiting and not attached.over:
            attached.waiting.remove(waiting[0])
            attached.client.called(ticket, AWAY)

    def _begin(self, attached: Attachment, ticket: int, kind: str, topic: str, body: bytes) -> None:
        random, plan = self._world.random, self._world.plan
        fails = not self.faultless and random.random() < plan.failed
        happens = not fails or (kind == "publish" and random.random() < 0.5)
        if fails:
            self._world.faults["failed_call"] += 1
        there_s = self._hop_s(topic if kind == "publish" else "")
        back_s = random.uniform(*plan.service_s)
        agenda = self._world.agenda
        if kind != "publish":
            there_s = max(there_s, attached.last_at - agenda.now)
            attached.last_at = agenda.now + there_s
        if happens:
            action = getattr(self, f"_{kind}")
            agenda.after(there_s, action, attached, topic, body)
        agenda.after(there_s + back_s, self._return, attached, ticket, REFUSED if fails else "")

    def _return(self, attached: Attachment, ticket: int, error: str) -> None:
        if not attached.over:
            attached.client.called(ticket, error)

    def _subscribe(self, attached: Attachment, topic: str, _: bytes) -> None:
        attached.topics[topic] = None

    def _unsubscribe(self, attached: Attachment, topic: str, _: bytes) -> None:
        attached.topics.pop(topic, None)

    def _publish(self, _: Attachment, topic: str, body: bytes) -> None:
        for attached in list(self._attached.values()):
            if topic in attached.topics:
                self._hand_over(attached, topic, body)

    # ── messages ─────────────────────────────────────────────────────────────────────────

    def _hand_over(self, attached: Attachment, topic: str, body: bytes) -> None:
        world, plan = self._world, self._world.plan
        if (attached.client.name, topic) in self.held:
            self.held[attached.client.name, topic].append(body)
            return
        if not attached.up:
            if plan.lossless:
                attached.kept.append((topic, body))
            else:
                world.faults["message_loss"] += 1
            return
        if not plan.lossless and not self.faultless and world.random.random() < plan.lost:
            world.faults["message_loss"] += 1
            return
        world.agenda.after(self._hop_s(topic), self._arrive, attached, topic, body)
        if not self.faultless and world.random.random() < plan.doubled:
            world.faults["message_doubling"] += 1
            world.agenda.after(self._hop_s(topic) * 3, self._arrive, attached, topic, body)

    def _arrive(self, attached: Attachment, topic: str, body: bytes) -> None:
        if attached.over:
            return
        if attached.up:
            attached.client.notify(topic, body)
        elif self._world.plan.lossless:
            attached.kept.append((topic, body))
        else:
            self._world.faults["message_loss"] += 1

    def _hop_s(self, topic: str) -> float:
        world, plan = self._world, self._world.plan
        slow = self.slow_topics.get(topic, 0.0) > world.agenda.now
        if slow or (not self.faultless and world.random.random() < plan.slow):
            return world.random.uniform(plan.service_s[0], plan.slow_s * (4 if slow else 1))
        return world.random.uniform(*plan.service_s)

    def release(self, client: ServiceClient, topic: str) -> None:
        for body in self.held.pop((client.name, topic)):
            self._hand_over(self._attached[client.name], topic, body)

    # ── faults ───────────────────────────────────────────────────────────────────────────

    def interrupt(self, client: ServiceClient) -> None:
        """The connection of one process breaks; `resume` brings it back."""
        attached = self._attached.get(client.name)
        if attached is not None:
            attached.up = False

    def resume(self, client: ServiceClient) -> None:
        attached = self._attached.get(client.name)
        if attached is None or attached.up:
            return
        attached.up = True
        kept, attached.kept = attached.kept, []
        for topic, body in kept:
            self._world.agenda.after(self._hop_s(topic), self._arrive, attached, topic, body)
        waiting, attached.waiting = attached.waiting, []
        for call in waiting:
            self._begin(attached, *call)
        client.interrupted()
