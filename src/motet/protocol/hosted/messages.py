"""Frames of hosting, inside the process of a broker: with its container, and with hosted clients.

    container ── ContainerHello, Registered ──▶ broker      which clients it has the code of
    container ◀── RunHosted, HaltHosted ── broker           run a copy; stop it, because it moves
    container ── HostedHalted ──▶ broker                    nothing of this client runs

    client ── HostedHello ──▶ broker                        opens its session, or continues it
    client ◀── HostedState, then Welcome ── broker          what to continue with
    client ── HostedCheckpoint ──▶ broker                   state, cursors, outputs: one fact
    client ◀── CheckpointKept ── broker                     it is durable

A hosted client acknowledges events with checkpoints only. What it publishes is part of the
checkpoint, with its numbers, and is published when that is durable: so a crash in between neither
loses it nor publishes it twice.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from msgspec import Struct

from motet.protocol.session.messages import ClientHello
from motet.protocol.traits import CLIENT, CONTAINER, STRANGER, frame

MAX_STATE_BYTES: Final = 1024 * 1024
MAX_OUTPUTS_BYTES: Final = 1024 * 1024
"""The outputs of one client that are not known to be in the log. With the state they fit the frame
that takes a session to its next broker."""
MAX_OUTPUTS: Final = 4096


@frame(senders=STRANGER, inside=True, hello=lambda _: ("container", ""), versioned=True)
class ContainerHello(Struct, tag="container", array_like=True, frozen=True):
    """The container of this broker."""

    version: int


@frame(senders=CONTAINER)
class Registered(Struct, tag="registered", array_like=True, frozen=True):
    """All clients that the container can run, and those of them that begin at this broker."""

    clients: tuple[str, ...]
    homes: tuple[str, ...] = ()


@frame()
class RunHosted(Struct, tag="run", array_like=True, frozen=True):
    """The session of this hosted client is here: run a copy, unless one runs."""

    client: str


@frame()
class HaltHosted(Struct, tag="halt", array_like=True, frozen=True):
    """Stop the copy of this client; answered by `HostedHalted`. None may start before the next
    `RunHosted`."""

    client: str


@frame(senders=CONTAINER)
class HostedHalted(Struct, tag="halted", array_like=True, frozen=True):
    client: str


@frame(
    senders=STRANGER, inside=True, hello=lambda each: ("client", each.hello.client), versioned=True
)
class HostedHello(Struct, tag="hosted", array_like=True, frozen=True):
    """The hello of a hosted client."""

    version: int
    hello: ClientHello


@frame()
class HostedState(Struct, tag="hosted=", array_like=True, frozen=True):
    """Where a hosted client continues. `state` is None if it has never given one. `outputs` are
    publications that may not be in the log yet; the last one is number `last`."""

    number: int = 0
    state: bytes | None = None
    cursors: dict[str, int] = {}
    outputs: tuple[bytes, ...] = ()
    last: int = 0


@frame(senders=CLIENT, events=attrgetter("outputs"))
class HostedCheckpoint(Struct, tag="checkpoint", array_like=True, frozen=True):
    """What a hosted client has processed, the state that it had then, and what it publishes.
    `cursors`: everything of a pubend up to this tick is acknowledged. `state` is None if it has not
    changed. `settled`: the broker has answered publications up to this number. `outputs` follow
    the last ones."""

    number: int
    cursors: dict[str, int] = {}
    state: bytes | None = None
    settled: int = 0
    outputs: tuple[bytes, ...] = ()


@frame()
class CheckpointKept(Struct, tag="kept", array_like=True, frozen=True):
    number: int


HostedFrame = (
    ContainerHello
    | Registered
    | RunHosted
    | HaltHosted
    | HostedHalted
    | HostedHello
    | HostedState
    | HostedCheckpoint
    | CheckpointKept
)
