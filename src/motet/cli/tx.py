"""`motet tx`: transactions by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from motet.cli.ending import FAILED, FINE
from motet.cli.options import Json, Url
from motet.cli.voice import remark, say, say_json
from motet.client.connecting import connect
from motet.client.plan import Plan
from motet.client.plan_file import load_plan
from motet.errors import StillSpreading
from motet.runtime.loop import run

tx = typer.Typer(
    name="tx",
    help="Transactions of several clients: carry out a plan, ask what became of one.",
    no_args_is_help=True,
)
Patience = Annotated[float, typer.Option(min=0.001, help="Abort after so many seconds.")]


@tx.command()
def plan(
    url: Url,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The plan, a TOML file.")],
    explain: Annotated[
        bool, typer.Option("--explain", help="Only say what it would cost on this overlay.")
    ] = False,
    key: Annotated[
        str, typer.Option(help="Of all with the same key and --client, one is committed.")
    ] = "",
    client: Annotated[str, typer.Option(help="The coordinator's id; by default a new one.")] = "",
    timeout: Patience = 10.0,
    json: Json = False,
) -> int:
    """Carry out a plan: all of its steps take effect, at one point of every stream, or none does.

    The clients that it names must be connected and take part in transactions: `motet sub
    --participate`, or `client.participate()` in Python. The file has one table per step, called
    step: client, do (advertise, unadvertise, subscribe, unsubscribe or publish) and, as the case
    may be, filter, name, event, payload; id and after, if the order is not that of the file.

    Exit status 0 if it is committed, even if somebody whom it concerns is away and obeys later;
    that is said, and with --json effective is false. 1 if it is not, or if nobody can say.
    """
    steps = load_plan(file)
    steps.in_order()  # a plan that cannot be is refused before anybody is asked
    return run(_plan(url, steps, explain, key, client or f"tx-{os.getpid()}", timeout, json))


async def _plan(
    url: str, steps: Plan, explain: bool, key: str, client_id: str, timeout_s: float, json: bool
) -> int:
    async with connect(url, client_id=client_id) as client:
        if explain:
            told = await client.explain(steps)
            if json:
                say_json(told.as_dict())
            else:
                say(str(told))
            return FINE
        late: StillSpreading | None = None
        try:
            name = await client.execute(steps, timeout=timeout_s, key=key)
        except StillSpreading as problem:
            name, late = problem.tx, problem
    if json:
        done = {"transaction": name, "outcome": "committed", "effective": late is None}
        say_json({**done, "clients": steps.clients, "steps": len(steps.steps)})
    else:
        say(f"committed: {name}")
    if late is not None:
        remark(f"not effective everywhere yet: {late}")
    return FINE


@tx.command()
def outcome(
    url: Url,
    name: Annotated[str, typer.Argument(metavar="TRANSACTION", help="Its id: tx.id has it.")],
    timeout: Patience = 10.0,
    json: Json = False,
) -> int:
    """Say what became of a transaction: committed, aborted, in progress or expired.

    Exit status 1 unless it was committed.
    """
    found = run(_outcome(url, name, timeout))
    if json:
        say_json({"transaction": name, "outcome": found})
    else:
        say(found)
    return FINE if found == "committed" else FAILED


async def _outcome(url: str, name: str, timeout_s: float) -> str:
    async with connect(url, client_id=f"tx-{os.getpid()}") as client:
        return await client.outcome(name, timeout=timeout_s)
