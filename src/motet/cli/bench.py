"""`motet bench`: figures with their floors and their goals."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from typing import Annotated

import typer

from motet.cli.console import FAILED, FINE, Misuse, err, out, say, say_json
from motet.cli.options import Json, option, switch


class What(StrEnum):
    ROUTE = "route"
    MATCH = "match"
    JOURNAL = "journal"
    DELIVERY = "delivery"
    PUBEND = "pubend"
    TX = "tx"
    MOBILITY = "mobility"
    ORDERING = "ordering"
    SPARK = "spark"
    AUDIT = "audit"
    ALL = "all"


MODULES = {what: what.value for what in What if what is not What.ALL} | {What.PUBEND: "logs"}
"""Modules of `motet_labs.bench`; each has `run`."""


def bench(
    what: Annotated[
        What, typer.Argument(show_choices=False, help="One of the benchmarks above.")
    ] = What.ALL,
    short: Annotated[bool, switch("--short", "Run fewer rounds: about a minute each.")] = False,
    least: Annotated[
        bool, switch("--least", "Only check that it runs: seconds, and no useful figures.")
    ] = False,
    events: Annotated[
        int | None, option("N", "Events and rows for `bench spark`.", show_default="1,000,000")
    ] = None,
    json: Json = False,
) -> int:
    """Measure throughput, latency and recovery.

    \b
    route     forwarding through brokers
    match     the matching engines alone
    journal   the cost of durability
    delivery  exactly-once delivery, late readers, failover of a cell
    pubend    the log of exactly-once events
    tx        transactions
    mobility  clients that move, and draining a broker
    ordering  order across topics: sites, and ordered over plain event services
    spark     reading and writing with Spark
    audit     auditing a history with Spark

    Each figure is printed beside its floor: what the same machine does without Motet, measured in
    the same run. Exit status 1 if events were lost. A missed goal is shown but is not a failure,
    because goals depend on the machine.
    """
    if events is not None and (what is not What.SPARK or events < 1):
        raise Misuse("--events applies only to `motet bench spark`, and must be at least 1")
    from motet.spark.quiet import own_stderr
    from motet_labs import figures
    from motet_labs.figures import Figure, Size

    size = Size.LEAST if least else Size.SHORT if short else Size.LONG
    chosen = [kind for kind in MODULES if what in (What.ALL, kind)]
    results: list[Figure] = []
    with own_stderr(), err().status("") as line:  # Spark's output is kept away from descriptor 2
        for kind in chosen:
            # Imported when called: the other commands start faster without them.
            module = import_module(f"motet_labs.bench.{MODULES[kind]}")
            more = () if events is None else (events,)
            results += module.run(
                size, lambda text, kind=kind: line.update(f"{kind}: {text}"), *more
            )
    if json:
        say_json(figures.report(results))
    else:
        out().print(figures.table(results))
        say(f"\n{figures.describe_machine()}")
    return FINE if all(figure.counts for figure in results) else FAILED
