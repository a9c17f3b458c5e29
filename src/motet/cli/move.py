"""`motet move`: move a client to another broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from motet.cli.console import FINE, CommandFailed, say, say_json
from motet.cli.options import Json, all_addresses, argument, option, split_word
from motet.client.channel import Answer, RequestChannel, ask_all
from motet.client.relocation import ANSWER_GRACE_S
from motet.client.session.state import Failure, error_of
from motet.errors import MotetError
from motet.protocol.mobility.messages import MoveOrder, MoveOrdered
from motet.runtime.loop import run


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
    former = run(_move(addresses, name, to, timeout))
    if json:
        say_json({"client": name, "from": former, "to": to})
    else:
        say(f"{name} is at {to} already" if former == to else f"{name} moves from {former} to {to}")
    return FINE


async def _move(addresses: Mapping[str, str], client: str, to: str, timeout_s: float) -> str:
    """Returns the broker that the client was at."""
    answers = await ask_all(addresses, clients=(client,))
    home = _home_in(answers, client)
    if home == to:
        return home
    address = _address_of(home, addresses, answers)
    if not address:
        raise CommandFailed(
            f"{client} is at {home}, whose address is not known here",
            "give the address of that broker, or the overlay's topology file",
        )
    async with RequestChannel(address, timeout_s + ANSWER_GRACE_S, "never") as channel:
        ordered = await channel.ask(MoveOrder(client, to, timeout_s), MoveOrdered)
    if ordered.error:
        failure = Failure(ordered.error, ordered.text, ordered.missing)
        raise error_of(failure, f"move {client} to {to}", timeout_s)
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
