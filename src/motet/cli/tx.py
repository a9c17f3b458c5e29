"""`motet tx`: execute plans, and ask for outcomes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from motet.cli.console import FAILED, FINE, remark, say, say_json
from motet.cli.options import Json, Url, argument, entry_broker, group, option, split_word, switch
from motet.client.client import connect
from motet.client.plan import Plan
from motet.errors import StillSpreading
from motet.runtime.loop import run

tx = group("tx", "Run transactions by hand, or ask for their outcome.")


@tx.command()
def plan(
    url: Url = None,
    file: Annotated[str | None, argument("FILE", "The plan: a TOML file.")] = None,
    explain: Annotated[
        bool, switch("--explain", "Print what the plan would cost on this overlay, and do nothing.")
    ] = False,
    key: Annotated[
        str,
        option("KEY", "Makes the plan idempotent: at most one plan per KEY and --client commits."),
    ] = "",
    client: Annotated[
        str, option("ID", "The id of the coordinator.", show_default="a new one")
    ] = "",
    timeout: Annotated[
        float, option("SECONDS", "Abort the plan if it is not decided by then.", min=0.001)
    ] = 10.0,
    json: Json = False,
) -> int:
    """Execute a plan as one transaction.

    All steps take effect at one point of every stream, or none does. The clients that the plan
    names must be connected and take part in transactions: with `motet sub --participate`, or with
    `client.participate()` in Python.

    The file has one table [[step]] per step, with client and do (advertise, unadvertise, subscribe,
    unsubscribe or publish), and as needed filter, name, event, payload; also id and after, if the
    order of steps is not that of the file.

    Exit status 0 if committed. If an affected broker is unreachable, a warning is printed
    ("effective": false with --json). Exit status 1 if the plan is aborted or its outcome is
    unknown.
    """
    url, path = split_word(url, file, "FILE")
    steps = Plan.load(Path(path))
    steps.in_order()  # refuse an impossible plan before connecting
    address = entry_broker(url)
    return run(_plan(address, steps, explain, key, client or f"tx-{os.getpid()}", timeout, json))


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
        remark(f"committed, but not effective everywhere yet: {late}")
    return FINE


@tx.command()
def outcome(
    url: Url = None,
    name: Annotated[
        str | None, argument("TRANSACTION", "The id of the transaction: `tx.id` in Python.")
    ] = None,
    timeout: Annotated[
        float,
        option(
            "SECONDS",
            "How long to wait for the answer; does not affect the transaction.",
            min=0.001,
        ),
    ] = 10.0,
    json: Json = False,
) -> int:
    """Print the outcome of a transaction.

    The outcome is committed, aborted, in progress or expired. Exit status 1 unless it is committed.
    """
    url, tx_id = split_word(url, name, "TRANSACTION")
    found = run(_outcome(entry_broker(url), tx_id, timeout))
    if json:
        say_json({"transaction": tx_id, "outcome": found})
    else:
        say(found)
    return FINE if found == "committed" else FAILED


async def _outcome(url: str, name: str, timeout_s: float) -> str:
    async with connect(url, client_id=f"tx-{os.getpid()}") as client:
        return await client.outcome(name, timeout=timeout_s)
