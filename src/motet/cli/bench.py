"""`motet bench`: figures beside their floors and their goals."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from motet.bench import figures
from motet.bench.figures import Figure, Progress
from motet.cli.ending import FAILED, FINE, Misuse
from motet.cli.options import Json
from motet.cli.voice import err, out, say, say_json


class What(StrEnum):
    ROUTE = "route"
    MATCH = "match"
    JOURNAL = "journal"
    DELIVERY = "delivery"
    PUBEND = "pubend"
    TX = "tx"
    SPARK = "spark"
    AUDIT = "audit"
    ALL = "all"


def bench(
    what: Annotated[What, typer.Argument(help="Which benchmarks.")] = What.ALL,
    short: Annotated[
        bool, typer.Option("--short", help="About a minute each, with fewer rounds.")
    ] = False,
    events: Annotated[
        int | None, typer.Option(help="Events and rows for Spark: 1,000,000 if nothing is said.")
    ] = None,
    json: Json = False,
) -> int:
    """Measure brokers on the way (route), the matching engines alone (match), what durability
    costs (journal), what exactly-once delivery costs, how fast late readers are and how long a cell
    that loses a process is silent (delivery), the log of exactly-once events (pubend), transactions
    (tx), how fast Spark reads and writes (spark), how long it judges a history (audit), or all.

    Every figure is printed beside the floor measured in the same run: what the machine allows
    without motet. The exit status is 1 if events were lost; a missed goal is shown, not punished,
    because it depends on the machine.
    """
    if events is not None and (what is not What.SPARK or events < 1):
        raise Misuse("--events is a number from 1 on, for `motet bench spark`")
    chosen = [kind for kind in _BENCHMARKS if what in (What.ALL, kind)]
    results: list[Figure] = []
    with err().status("") as line:
        for kind in chosen:

            def tell(text: str, kind: What = kind) -> None:
                line.update(f"{kind}: {text}")

            if kind is What.SPARK:
                results += _spark(short, tell, events)
            else:
                results += _BENCHMARKS[kind](short, tell)
    if json:
        say_json(figures.report(results))
    else:
        out().print(figures.table(results))
        say(f"\n{figures.describe_machine()}")
    return FINE if all(figure.counts for figure in results) else FAILED


# Imported when called: the other commands start faster without them.


def _route(short: bool, progress: Progress) -> list[Figure]:
    from motet.bench import route

    return route.run(short, progress)


def _match(short: bool, progress: Progress) -> list[Figure]:
    from motet.bench import match

    return match.run(short, progress)


def _journal(short: bool, progress: Progress) -> list[Figure]:
    from motet.bench import journal

    return journal.run(short, progress)


def _delivery(short: bool, progress: Progress) -> list[Figure]:
    from motet.bench import delivery

    return delivery.run(short, progress)


def _pubend(short: bool, progress: Progress) -> list[Figure]:
    from motet.bench import pubend

    return pubend.measure(short, progress)


def _tx(short: bool, progress: Progress) -> list[Figure]:
    from motet.bench import tx

    return tx.run(short, progress)


def _spark(short: bool, progress: Progress, events: int | None = None) -> list[Figure]:
    from motet.bench import spark

    return spark.run(short, progress, events)


def _audit(short: bool, progress: Progress) -> list[Figure]:
    from motet.bench import audit

    return audit.run(short, progress)


_BENCHMARKS: dict[What, Callable[[bool, Progress], list[Figure]]] = {
    What.ROUTE: _route,
    What.MATCH: _match,
    What.JOURNAL: _journal,
    What.DELIVERY: _delivery,
    What.PUBEND: _pubend,
    What.TX: _tx,
    What.SPARK: _spark,
    What.AUDIT: _audit,
}
