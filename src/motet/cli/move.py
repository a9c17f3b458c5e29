"""`motet move`: move a client to another broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from motet.cli.console import FINE, INTERRUPTED, CommandFailed, remark, say, say_json
from motet.cli.options import Json, all_addresses, argument, option, split_word
from motet.client.channel import Answer, ask_all
from motet.client.orders import move_order
from motet.errors import MotetError, UnknownClient
from motet.runtime.loop import run

MOST_HOMES = 3
"""How often a client is followed that moves while it is looked for."""
AGAIN_S = 0.2


def move(
    to: Annotated[str, option("BROKER", "The broker that it moves to.")],
    target: Annotated[
        str | None,
        argument(
            "URL|FILE",
            "The address of the client's broker, or a topology file.",
            show_default="the overlay in run/",
        ),
    ] = None,
    client: Annotated[str | None, argument("CLIENT", "The client's id.")] = None,
    timeout: Annotated[
        float, option("SECONDS", "Give up the move if it is not decided by then.", min=0.001)
    ] = 10.0,
    json: Json = False,
) -> int:
    """Move a client to another broker.

    Its session, with everything in force and all events owed to it, moves along, and the client
    follows. A durable client need not be connected: it is sent on when it connects.

    Exit status 0 if the move is decided: nothing can refuse it any more, but the client may still
    be on its way. Otherwise it stays where it is, and the reason is printed.
    """
    where, name = split_word(target, client, "CLIENT")
    addresses = all_addresses([where] if where else [])
    try:
        former = run(_move(addresses, name, to, timeout))
    except KeyboardInterrupt:
        remark(f"interrupted: {name} may still move to {to}; `motet status` shows its moves")
        return INTERRUPTED
    if json:
        say_json({"client": name, "from": former, "to": to})
    else:
        say(f"{name} is at {to} already" if former == to else f"{name} moves from {former} to {to}")
    return FINE


async def _move(addresses: Mapping[str, str], client: str, to: str, timeout_s: float) -> str:
    """Returns the broker that the client was at."""
    for left in reversed(range(MOST_HOMES)):
        answers = await ask_all(addresses, clients=(client,))
        home = _home_in(answers, client)
        if home == to:
            break
        address = _address_of(home, addresses, answers)
        if not address:
            raise CommandFailed(
                f"{client} is at {home}, whose address is not known here",
                "give the address of that broker, or the overlay's topology file",
            )
        try:
            await move_order(address, client, to, timeout_s)
            break
        except UnknownClient:  # it has just moved, or its session has ended
            if not left:
                raise
            await asyncio.sleep(AGAIN_S)
    return home


def _home_in(answers: Mapping[str, Answer], client: str) -> str:
    """The broker that has the session. Others hear of a move later than the two that it is between,
    so a broker is believed first about itself."""
    homes = [(state["broker"], home) for state, home in _homes(answers, client)]
    for broker, home in homes:
        if broker == home:
            return home
    for _, home in homes:
        return home
    silent = [answer for answer in answers.values() if isinstance(answer, MotetError)]
    if len(silent) == len(answers):
        raise silent[0]
    also = f"; {len(silent)} of {len(answers)} brokers did not answer" if silent else ""
    raise CommandFailed(
        f"no broker knows a client {client!r}{also}", "its id is the `client_id` that it has given"
    )


def _homes(answers: Mapping[str, Answer], client: str) -> list[tuple[dict[str, Any], str]]:
    """The answers of brokers that know the client, each with the broker that it names."""
    states = [answer for answer in answers.values() if not isinstance(answer, MotetError)]
    found = [(state, state.get("homes", {}).get(client)) for state in states]
    return [(state, home) for state, home in found if home]


def _address_of(broker: str, addresses: Mapping[str, str], answers: Mapping[str, Answer]) -> str:
    """A broker that was asked by its address is known by the name in its answer."""
    for name, answer in answers.items():
        if not isinstance(answer, MotetError) and answer["broker"] == broker:
            return addresses[name]
    return addresses.get(broker, "")
