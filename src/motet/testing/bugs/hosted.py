"""Bugs in hosted clients: their copies, checkpoints and outputs."""

from __future__ import annotations

from typing import Any

from motet.hosted.session import Inbox
from motet.protocol.contract import SetTimer
from motet.protocol.hosted import soft
from motet.protocol.hosted.durable import DurableHosted
from motet.protocol.hosted.facts import CheckpointMade
from motet.protocol.hosted.messages import CheckpointKept, HostedCheckpoint, HostedState
from motet.protocol.hosted.soft import HOME_S, SoftHosted
from motet.protocol.hosted.state import HostedClient, MovingHosted
from motet.protocol.session.soft import SoftSessions
from motet.testing.bugs.catalogue import Patch, around, mutation, nothing, replaces

OFTEN: dict[str, Any] = {"hosted": 3, "hosted_s": 0.1}


@mutation("moves", "copies", **OFTEN)
@replaces(SoftHosted, "_halt")
def a_copy_is_not_halted(self: Any, client: str, out: Any) -> str:
    """The source decides a move while the copy of its client runs."""
    del self, client, out
    return ""


@mutation("moves", "copies", **OFTEN)
def a_copy_begins_without_its_session() -> list[Patch]:
    """The home of a hosted client runs a copy whenever the client is not there."""

    def look_home(self: Any, key: Any, out: Any, now: float) -> None:
        for client in self._homes:
            if client not in self._durable.hosted:
                self._run(client, out)
        out.timers.append(SetTimer(key, now + HOME_S))

    return [
        Patch(SoftHosted, "_look_home", look_home),
        Patch(SoftHosted, "_refusal", nothing),
        Patch(SoftSessions, "_objection_to", nothing),
    ]


@mutation("moves", "copies", **OFTEN)
def nobody_runs_what_has_arrived() -> list[Patch]:
    """The target of a move does not run a copy when the session has arrived."""
    return [Patch(SoftHosted, "changed", nothing)]


@mutation("moves", "copies", first=10, **OFTEN)
def a_refused_move_leaves_no_copy() -> list[Patch]:
    """A copy that was halted for a move does not run again when the move is refused."""
    return [Patch(SoftHosted, "_stays", nothing)]


@mutation("moves", "checkpoints", **OFTEN)
@around(DurableHosted, "hand_out")
def the_state_stays_behind(original: Any, self: Any, client: str, epoch: str) -> Any:
    """A session moves without the state of its hosted client."""
    moving = original(self, client, epoch)
    if moving is not None:
        known = moving.client
        moving = MovingHosted(HostedClient(known.epoch, known.number, last=known.last))
    return moving


@mutation("mobility", "checkpoints", "replay", "invariants", **OFTEN)
@replaces(SoftHosted, "_checkpoint")
def checkpoints_are_not_journaled(
    self: Any, connection: int, peer: Any, frame: HostedCheckpoint, out: Any, _: float
) -> None:
    """A checkpoint is acknowledged, and known until its broker dies."""
    known = self._durable.current(peer.name, self._shared.clients[peer.name].epoch)
    known.keep(frame)
    out.deliver.append((connection, CheckpointKept(frame.number)))


@mutation("mobility", "checkpoints", "exactly-once", **OFTEN)
@around(HostedClient, "keep")
def outputs_are_not_kept(original: Any, self: Any, checkpoint: HostedCheckpoint) -> None:
    """What is published with a checkpoint is lost if the broker dies before it is in the log."""
    original(self, checkpoint)
    self.outputs = ()


@mutation("mobility", "checkpoints", "duplicates", **OFTEN)
def cursors_are_not_kept() -> list[Patch]:
    """A checkpoint does not have the cursors that belong to its state."""

    def checkpoint(self: Any, fact: CheckpointMade) -> None:
        self.current(fact.client, fact.epoch).keep(fact.checkpoint)

    def told(known: HostedClient) -> HostedState:
        return HostedState(known.number, known.state, {}, known.outputs, known.last)

    return [Patch(DurableHosted, "_checkpoint", checkpoint), Patch(soft, "_told", told)]


@mutation("moves", "exactly-once", "checkpoints", **OFTEN)
@replaces(Inbox, "cursors")
def what_waits_is_acknowledged(self: Any) -> dict[str, int]:
    """A checkpoint acknowledges events that have arrived and are not handled."""
    return dict(self._received)
