"""`motet experiment`: what the papers measured, measured again here."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from motet.cli.options import Json

experiment = typer.Typer(
    name="experiment",
    help="Repeat the experiments of the papers: figures beside theirs, pictures, JSON.",
    no_args_is_help=True,
)

DEFAULT_OUT = Path("run/exactly-once")
TRANSACTIONS_OUT = Path("run/transactions")
Out = Annotated[
    Path, typer.Option(metavar="DIR", help="Where the page, the JSON and the pictures go.")
]
Plots = Annotated[bool, typer.Option("--plots/--no-plots", help="Pictures, which need matplotlib.")]


class Part(StrEnum):
    OVERHEAD = "overhead"
    LINK = "link"
    BROKER = "broker"
    PUBLISHER = "publisher"


@experiment.command("exactly-once")
def exactly_once(
    part: Annotated[
        list[Part] | None, typer.Option("--part", help="Only this part; may be repeated.")
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help="Less than a minute; less of everything.")
    ] = False,
    out: Out = DEFAULT_OUT,
    plots: Plots = True,
    json: Json = False,
) -> int:
    """What exactly-once delivery costs, and how it meets failures: section 4 of its paper.

    overhead: CPU of the brokers and latency, best effort against exactly once, for a growing
    number of subscribers. link, broker, publisher: link b1–s1, broker b1 and the publishers'
    broker p1 stall, fail and come back; latency over time, who asks for what again, and whether
    anything is lost or doubled.

    DIR gets exactly-once.md, a page with all tables and pictures, and exactly-once.json, with
    every event and nack. Exit status 1 if an exactly-once event was lost, doubled or out of order.
    """
    from motet.cli import trial_runs

    return trial_runs.exactly_once([each.value for each in part or Part], short, out, plots, json)


class TxPart(StrEnum):
    BASE = "base"
    OVERLAY = "overlay"
    CONCURRENCY = "concurrency"
    CLIENTS = "clients"
    IMPACT = "impact"


@experiment.command("transactions")
def transactions(
    part: Annotated[
        list[TxPart] | None, typer.Option("--part", help="Only this part; may be repeated.")
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help="A few minutes; less of everything.")
    ] = False,
    out: Out = TRANSACTIONS_OUT,
    plots: Plots = True,
    json: Json = False,
) -> int:
    """Transactions of several clients, four approaches to one scenario: section 7 of its paper.

    base: latency and throughput on three brokers. overlay: 1, 3, 5 and 9 brokers. concurrency:
    1 to 10 transactions at a time. clients: 4 to 40. impact: what becomes of the rate of regular
    events. Each with links that take a millisecond; with brokers that sync to disk besides; and
    without any delay.

    DIR gets transactions.md, a page with all tables and pictures, and transactions.json. Exit
    status 1 if an update of a transaction went astray, or a regular event was lost.
    """
    from motet.cli import tx_runs

    return tx_runs.transactions([each.value for each in part or TxPart], short, out, plots, json)
