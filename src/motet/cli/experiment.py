"""`motet experiment`: repeats the measurements of the papers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from motet.cli.options import Json, Plots, group, option, switch

experiment = group("experiment", "Repeat the experiments of the papers.")

DEFAULT_OUT = Path("run/exactly-once")
TRANSACTIONS_OUT = Path("run/transactions")
MOBILITY_OUT = Path("run/mobility")
ORDERING_OUT = Path("run/ordering")
Out = Annotated[Path, option("DIR", "Folder for the page, the JSON file and the plots.")]
THIS_PART = typer.Option("--part", help="Run only this part; may be repeated.", show_default="all")


class Part(StrEnum):
    OVERHEAD = "overhead"
    LINK = "link"
    BROKER = "broker"
    PUBLISHER = "publisher"


@experiment.command("exactly-once")
def exactly_once(
    part: Annotated[list[Part] | None, THIS_PART] = None,
    short: Annotated[bool, switch("--short", "Run less of everything: under a minute.")] = False,
    out: Out = DEFAULT_OUT,
    plots: Plots = True,
    json: Json = False,
) -> int:
    """Measure exactly-once delivery and its recovery.

    This repeats section 4 of the paper on exactly-once delivery.

    \b
    overhead   CPU of brokers and latency, best effort against exactly once,
               for a growing number of subscribers
    link       link b1–s1 stalls, fails and returns
    broker     broker b1 stalls, fails and returns
    publisher  the publishers' broker p1 stalls, fails and returns

    The folder of --out gets exactly-once.md with all tables and plots, and exactly-once.json with
    every event and every retransmission request. Exit status 1 if an exactly-once event was lost,
    duplicated or out of order.
    """
    from motet.cli import experiment_run

    return experiment_run.exactly_once(
        [each.value for each in part or Part], short, out, plots, json
    )


class TxPart(StrEnum):
    BASE = "base"
    OVERLAY = "overlay"
    CONCURRENCY = "concurrency"
    CLIENTS = "clients"
    IMPACT = "impact"


@experiment.command("transactions")
def transactions(
    part: Annotated[list[TxPart] | None, THIS_PART] = None,
    short: Annotated[bool, switch("--short", "Run less of everything: a few minutes.")] = False,
    out: Out = TRANSACTIONS_OUT,
    plots: Plots = True,
    json: Json = False,
) -> int:
    """Measure transactions of several clients.

    This repeats section 7 of the paper on transactions: four approaches to one scenario.

    \b
    base         latency and throughput on three brokers
    overlay      1, 3, 5 and 9 brokers
    concurrency  1 to 10 transactions at a time
    clients      4 to 40 clients
    impact       the rate of regular events during transactions

    Each part runs with links of one millisecond, with brokers that also sync to disk, and without
    any delay.

    The folder of --out gets transactions.md with all tables and plots, and transactions.json. Exit
    status 1 if an update of a transaction or a regular event was lost.
    """
    from motet.cli import experiment_run

    return experiment_run.transactions(
        [each.value for each in part or TxPart], short, out, plots, json
    )


class MobilityPart(StrEnum):
    WORKLOADS = "workloads"
    CLIENTS = "clients"
    SINGLE = "single"
    INCREMENTAL = "incremental"
    TOPOLOGY = "topology"
    WIDE_AREA = "wide-area"


@experiment.command("mobility")
def mobility(
    part: Annotated[list[MobilityPart] | None, THIS_PART] = None,
    short: Annotated[bool, switch("--short", "Run less of everything: about a minute.")] = False,
    out: Out = MOBILITY_OUT,
    plots: Plots = True,
    json: Json = False,
) -> int:
    """Measure clients that move between brokers.

    This repeats section 5 of the paper on transactional mobility, against its rival: covering.

    \b
    workloads    subscriptions that cover each other in different shapes
    clients      400 to 1,000 clients that move
    single       only the subscription that covers all others moves
    incremental  10 to 50 of 400 clients move
    topology     14 to 26 brokers
    wide-area    links with delays

    The folder of --out gets mobility.md with all tables and plots, and mobility.json. Exit status 1
    if an exactly-once event was lost, duplicated or out of order.
    """
    from motet.cli import experiment_run

    return experiment_run.mobility(
        [each.value for each in part or MobilityPart], short, out, plots, json
    )


class OrderingPart(StrEnum):
    SIZES = "sizes"
    PUBLISHED = "published"
    RATES = "rates"
    SUBSCRIPTIONS = "subscriptions"
    PLACEMENT = "placement"


@experiment.command("ordering")
def ordering(
    part: Annotated[list[OrderingPart] | None, THIS_PART] = None,
    short: Annotated[bool, switch("--short", "Run less of everything: three minutes.")] = False,
    out: Out = ORDERING_OUT,
    plots: Plots = True,
    json: Json = False,
) -> int:
    """Measure one order across topics, over five sites.

    This repeats section 5 of the paper on total notification order. Needs motet[spark], and Java
    for the part sizes.

    \b
    sizes          entries of timestamps, for up to 2 million subscribed topics
    published      the algorithm as published, which stalls and inverts
    rates          latency, throughput, bandwidth: 1,000 to 10,000 events/s
    subscriptions  the same for 10 to 100 thousand subscribed topics
    placement      topics placed by number, and by the planner

    The folder of --out gets ordering.md with all tables and plots, and ordering.json. Exit status 1
    if a request for a number was not answered, or our order was broken.
    """
    from motet.cli import experiment_run

    return experiment_run.ordering(
        [each.value for each in part or OrderingPart], short, out, plots, json
    )
