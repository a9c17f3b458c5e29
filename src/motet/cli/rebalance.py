"""`motet rebalance`: even out the clients of all brokers."""

from __future__ import annotations

from typing import Annotated, Any

from motet.cli.console import (
    FAILED,
    FINE,
    INTERRUPTED,
    complain,
    out,
    remark,
    say,
    say_json,
    table,
)
from motet.cli.drain import SHOWN, counted
from motet.cli.operation import Bar, carried_out
from motet.cli.options import Json, Targets, all_addresses, option, switch
from motet.fleet.balance import Balance, BalanceReport
from motet.fleet.spread import TOLERANCE, bounds
from motet.runtime.loop import run


def rebalance(
    targets: Targets = None,
    dry_run: Annotated[bool, switch("--dry-run", "Show the plan, and move nobody.")] = False,
    timeout: Annotated[float, option("SECONDS", "When to give up.", min=0.001)] = 60.0,
    json: Json = False,
) -> int:
    """Move clients until all brokers have about as many.

    It stops as soon as no broker has more or fewer clients than the mean by more than a tenth, and
    moves no more clients than that takes, over short paths. Brokers that are draining or do not
    answer are left out.

    Exit status 0 if the brokers are even then. Clients that moved stay where they are after Ctrl-C,
    or a failure; the same command goes on from there.
    """
    addresses = all_addresses(targets or [])
    with Bar("moving clients", json) as bar:

        def show(report: BalanceReport, text: str) -> None:
            bar.show(len(report.moved), sum(report.planned.values()), text)

        work = Balance(addresses, timeout, show)
        if dry_run:
            report: BalanceReport | None = run(work.plan())
        else:
            report = carried_out(work, _state_after, lambda report: report.moved)
    if report is None:
        return INTERRUPTED
    if json:
        say_json(as_json(report, dry_run))
    else:
        _show(report, dry_run)
    if dry_run or report.is_even:
        return FINE
    how = "interrupted: " if report.interrupted else ""
    complain(f"{how}{unevenness(report)}", "run the same command again to go on")
    return INTERRUPTED if report.interrupted else FAILED


def _state_after(report: BalanceReport) -> str:
    many = counted(len(report.moved), "client")
    return f"{many} moved, and some may still move; the same command goes on"


def unevenness(report: BalanceReport) -> str:
    low, high = bounds(report.after)
    uneven = [
        f"{name} ({many:,})" for name, many in report.after.items() if not low <= many <= high
    ]
    return f"not all brokers have {low:,} to {high:,} clients: {', '.join(uneven)}"


def as_json(report: BalanceReport, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "before": report.before,
        "plan": [
            {"from": source, "to": target, "clients": many}
            for (source, target), many in report.planned.items()
        ],
        "moved": {
            client: {"from": source, "to": target}
            for client, (source, target) in report.moved.items()
        },
        "stay": report.stay,
        "after": report.after,
        "left_out": report.left_out,
        "tolerance": TOLERANCE,
        "seconds": round(report.moves_s, 3),
        "interrupted": report.interrupted,
        "even": report.is_even,
    }


def _show(report: BalanceReport, dry_run: bool) -> None:
    for name, why in report.left_out.items():
        remark(f"{name} is left out: {why}")
    if not report.planned:
        say(f"nothing to do: {_spread(report.before)}")
        return
    plan = table("plan", "from", "to", "clients", right=("clients",))
    for (source, target), many in report.planned.items():
        plan.add_row(source, target, f"{many:,}")
    out().print(plan)
    say("")
    if dry_run:
        say(f"now: {_spread(report.before)}")
        return
    rate = len(report.moved) / max(report.moves_s, 1e-3)
    say(f"{counted(len(report.moved), 'client')} moved in {report.moves_s:.1f} s ({rate:.0f}/s)")
    say(f"before: {_spread(report.before)}")
    say(f"after:  {_spread(report.after)}")
    if report.stay and not report.is_even:
        stay = table("", "client", "why it stays")
        for client, why in list(report.stay.items())[:SHOWN]:
            stay.add_row(client, why)
        out().print(stay)


def _spread(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {many:,}" for name, many in sorted(counts.items()))
