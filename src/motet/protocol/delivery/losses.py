"""Losses that clients bring along: the parts of a wanted past that cannot be read any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from motet.protocol.delivery.messages import Delivered
from motet.protocol.delivery.spans import Range
from motet.protocol.delivery.stream import Effects
from motet.protocol.delivery.subend import Position


class Losses:
    """A loss that was found where a client was before is told here, until the client acknowledges
    it. If the client has a position in the same pubend, that is behind the loss."""

    def __init__(self, positions: Callable[[str], Mapping[str, Position]]) -> None:
        self._positions = positions
        self._brought: dict[str, dict[str, Range]] = {}
        """By client and pubend."""

    def expect(self, client: str, brought: Mapping[str, Range]) -> None:
        """A client has come here."""
        if brought:
            self._brought[client] = dict(brought)

    def of(self, client: str) -> dict[str, Range]:
        """By pubend: what a client has not acknowledged, found here or before."""
        positions = self._positions(client)
        found = {p: each.gone for p, each in positions.items() if each.gone is not None}
        return {**found, **self._brought.get(client, {})}

    def tell(self, client: str, cursors: Mapping[str, int], out: Effects) -> None:
        """To be called before anything else is delivered to a client that has connected."""
        for pubend, (since, upto) in self._brought.get(client, {}).items():
            if cursors.get(pubend, 0) < upto:
                lost = Delivered(pubend, upto, lost=((since, upto),))
                out.deliver.append((client, lost))

    def acknowledge(self, client: str, pubend: str, tick: int) -> None:
        brought = self._brought.get(client)
        if brought is None or pubend not in brought or tick < brought[pubend][1]:
            return
        del brought[pubend]
        if not brought:
            del self._brought[client]

    def forget(self, client: str) -> None:
        """The session is not here any more."""
        self._brought.pop(client, None)
