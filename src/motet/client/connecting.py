"""Opening a session: what an application may ask for, checked."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from motet.audit.recording import Recording, folder_of
from motet.client.checks import checked_cursors, checked_keep, is_time
from motet.client.client import Client
from motet.client.conversation import Conversation
from motet.client.machine import DEFAULT_WINDOW, ClientMachine
from motet.client.opening import Opening
from motet.client.recording import Recorder
from motet.errors import MisuseError
from motet.model.limits import MAX_CLIENT_ID_CHARS

Order = Literal["publisher", "total"]
ORDERS: dict[str, Order] = {"publisher": "publisher", "total": "total"}

KEEP_S = 7 * 86_400.0
"""How long a durable session is kept, unless its client says otherwise."""
MAX_CREDENTIALS_BYTES = 64 * 1024


def connect(
    address: str,
    *,
    client_id: str | None = None,
    connect_timeout: float = 5.0,
    window: int = DEFAULT_WINDOW,
    credentials: bytes = b"",
    best_effort: bool = False,
    order: Order = "publisher",
    durable: bool = False,
    keep_s: float = KEEP_S,
    cursors: Mapping[str, int] | None = None,
    acknowledge: Literal["auto", "manual"] = "auto",
    history: str | Path | None = None,
) -> Opening[Client]:
    """Open a session with the broker at `address`: await it, or use it with `async with`.

    A client id is the name of one client in the whole overlay; a second one with the same id, at
    whatever broker, takes over, and the first one gets `Fenced`. Without an id, a random one is
    taken. `window` bounds the publications whose fate is open. With `best_effort`, what it
    publishes is best effort, unless `publish` says otherwise.

    `order` is the order in which exactly-once events come. "publisher": those of one publisher
    as it has published them. "total": besides, any two events come to all clients in total order
    in the same order. That takes a round trip longer, and stops while a broker is down that has
    events for us.

    With `durable`, the session outlives this process: for `keep_s` seconds after its end the
    broker keeps what is in force, and what is owed to it, for the next process that connects here
    as a durable client with the same id. `cursors` are what the application is done with, by
    pubend, as it has written it down with its own effects: nothing at or below them comes again.
    An application is done with an event when it asks for the next one; with
    `acknowledge="manual"`, when it calls `acknowledge()`.

    `history` is a folder in which the client writes down what it does and what it gets, for
    `motet pipeline audit`; by default that of the environment variable MOTET_HISTORY, if any.
    """
    kept_s = checked_keep(durable, keep_s, client_id)
    known = checked_cursors(cursors)
    if acknowledge not in ("auto", "manual"):
        raise MisuseError(f"`acknowledge` is 'auto' or 'manual', not {acknowledge!r}")
    manual = acknowledge == "manual"
    return Opening(
        _connect(
            address,
            client_id,
            connect_timeout,
            window,
            credentials,
            best_effort,
            as_order(order) == "total",
            kept_s,
            known,
            manual,
            folder_of(history),
        )
    )


async def _connect(
    address: str,
    client_id: str | None,
    connect_timeout: float,
    window: int,
    credentials: bytes,
    best_effort: bool,
    total_order: bool,
    keep_s: float,
    cursors: Mapping[str, int] | None,
    manual: bool,
    history: Path | None,
) -> Client:
    if client_id is None:
        client_id = f"client-{secrets.token_hex(6)}"
    if not isinstance(client_id, str):
        raise MisuseError(f"a client id is text, not a {type(client_id).__name__}")
    if not 0 < len(client_id) <= MAX_CLIENT_ID_CHARS or not client_id.isprintable():
        raise MisuseError(f"a client id has 1 to {MAX_CLIENT_ID_CHARS} printable characters")
    if not isinstance(address, str):
        raise MisuseError(f"an address is text like motet://host:port, not {address!r}")
    if type(window) is not int or window < 1:
        raise MisuseError(f"a window holds at least one publication, not {window!r}")
    if not is_time(connect_timeout) or not connect_timeout > 0:
        raise MisuseError(
            f"connect_timeout is a number of seconds above 0, not {connect_timeout!r}"
        )
    if not isinstance(credentials, bytes) or len(credentials) > MAX_CREDENTIALS_BYTES:
        raise MisuseError(f"credentials are at most {MAX_CREDENTIALS_BYTES} bytes")
    instance = secrets.token_hex(8)
    machine = ClientMachine(
        client_id,
        window=window,
        credentials=credentials,
        instance=instance,
        keep_s=keep_s,
        cursors=cursors,
        total_order=total_order,
    )
    conversation = Conversation(address, machine, manual=manual)
    if history is not None:
        recording = Recording(history, f"client-{instance}")
        conversation.recorder = Recorder(machine, instance, recording)
    try:
        await conversation.begin(connect_timeout)
    except BaseException:
        if conversation.recorder is not None:
            await asyncio.to_thread(conversation.recorder.close)
        raise
    return Client(conversation, best_effort=best_effort)


def as_order(text: str) -> Order:
    """Checked: what an application wrote."""
    found = ORDERS.get(text) if isinstance(text, str) else None
    if found is None:
        raise MisuseError(f"`order` is 'publisher' or 'total', not {text!r}")
    return found
