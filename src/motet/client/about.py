"""What an application may ask its client: who and where it is, what it has, how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from motet.client.conversation import Conversation
from motet.client.ledger import Ledger
from motet.client.standing import Standing


class About:
    _conversation: Conversation
    _ledger: Ledger

    @property
    def client_id(self) -> str:
        return self._conversation.machine.client

    @property
    def broker(self) -> str:
        """The name of the broker that serves us."""
        return self._conversation.machine.broker or ""

    @property
    def address(self) -> str:
        return self._conversation.address

    @property
    def session_epoch(self) -> str:
        """The broker's name for this session; a new one means that the old one was lost."""
        return self._conversation.machine.epoch or ""

    @property
    def lost_sessions(self) -> int:
        """How often a session was lost and opened anew: events may have been missed then."""
        return self._conversation.lost_sessions

    @property
    def resumed(self) -> bool:
        """Whether it goes on with the durable session of an earlier process. If not, a durable
        client has been away for longer than its session was kept, or has never been here."""
        return self._conversation.resumed

    @property
    def standing(self) -> tuple[Standing, ...]:
        """The advertisements and subscriptions in force. Those that are not `taken_up` yet an
        earlier process of this durable client has left; subscriptions keep their events, so that
        the stream to this client stops in the end, until they are taken up or taken back."""
        return tuple(e for e in self._conversation.entries.values() if e.in_force)

    @property
    def published(self) -> int:
        """How many publications of this session are known to have met their fate, those of
        earlier processes included: durable, unless they were refused or best effort."""
        return self._conversation.machine.published

    @property
    def connected(self) -> bool:
        return self._conversation.machine.state == "open"

    @property
    def closed(self) -> bool:
        return self._conversation.error is not None

    @property
    def dropped_by_broker(self) -> int:
        """Events that the broker threw away because we did not read the connection."""
        return self._conversation.arrivals.dropped_by_broker

    @property
    def lost_events(self) -> int:
        """How often the broker has reported that exactly-once events are gone for good, because
        they were trimmed or destroyed before they reached us. `Subscription.lost` counts the
        same per subscription."""
        return self._conversation.arrivals.lost_events

    @property
    def cursors(self) -> Mapping[str, int]:
        """By pubend, the tick up to which the application is done with every event, as of now."""
        return MappingProxyType(dict(self._conversation.progress.cursors()))

    @property
    def unsettled(self) -> int:
        """Publications that still await their fate."""
        return self._conversation.made - self._ledger.settled
