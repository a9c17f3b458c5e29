"""The whole experiment of paper 5: overhead, then the three faults.

    report = await Experiment(FULL, directory).report()

The directory gets the result as JSON, with every single event and nack, and the pictures.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from motet.bench import figures
from motet.chaos.fleet import free_ports
from motet.errors import MisuseError, MotetError
from motet.experiments import findings, paper
from motet.experiments.faults import FAULTS, Injection, Record, proxied
from motet.experiments.findings import Finding
from motet.experiments.overhead import Effort, Measuring, Overhead
from motet.experiments.overlay import Overlay, links
from motet.experiments.paper import Schedule

PARTS = ("overhead", *FAULTS)
START_S = 8.0
"""About how long the overlay of the faults takes to start."""
SETTLING_S = 4.0
"""About how long a fault takes beyond its schedule."""


@dataclass(frozen=True)
class Plan:
    parts: tuple[str, ...] = PARTS
    effort: Effort = field(default_factory=Effort)
    schedules: dict[str, Schedule] = field(
        default_factory=lambda: {
            "link": paper.LINK,
            "broker": paper.BROKER,
            "publisher": paper.PUBLISHER,
        }
    )
    subscribers: tuple[str, ...] = paper.SUBSCRIBER_BROKERS
    """Brokers with a subscriber, in the overlay of the faults."""
    short: bool = False

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise MisuseError(f"{part!r} is no part of it; choose of {', '.join(PARTS)}")

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(part for part in self.parts if part in FAULTS)

    @property
    def expected_s(self) -> float:
        took_s = self.effort.expected_s if "overhead" in self.parts else 0.0
        took_s += START_S if self.faults else 0.0
        return took_s + sum(self.schedules[fault].total_s + SETTLING_S for fault in self.faults)


def _briefly(before_s: float, stall_s: float, gone_s: float, after_s: float) -> dict[str, Schedule]:
    return {fault: Schedule(before_s, stall_s, gone_s, after_s) for fault in FAULTS}


FULL = Plan(effort=Effort(rounds=3))
SHORT = Plan(
    effort=Effort(crowds=(100, 200), rounds=1, period_s=1.0),
    schedules=_briefly(1.0, 1.0, 1.2, 1.5),
    short=True,
)


@dataclass(frozen=True)
class Report:
    plan: Plan
    overhead: Overhead | None
    records: tuple[Record, ...]
    began: datetime
    took_s: float
    machine: dict[str, Any]

    @property
    def findings(self) -> list[Finding]:
        found = findings.of_overhead(self.overhead) if self.overhead is not None else []
        for record in self.records:
            found += findings.of_fault(record)
        return found

    @property
    def kept(self) -> bool:
        """Nothing lost, nothing doubled, nothing out of order."""
        whole = self.overhead is None or not (self.overhead.lost or self.overhead.amiss)
        return whole and all(record.account.kept for record in self.records)

    def to_json(self, *, series: bool = False) -> dict[str, Any]:
        """With `series`, every single event and nack, too."""
        told: dict[str, Any] = {
            "experiment": "exactly-once",
            "short": self.plan.short,
            "date": self.began.isoformat(timespec="seconds"),
            "seconds": round(self.took_s, 1),
            "machine": self.machine,
            "kept": self.kept,
            "results": [finding.to_json() for finding in self.findings],
        }
        if self.overhead is not None:
            told["overhead"] = self.overhead.to_json()
        for record in self.records:
            told[record.fault] = findings.fault_json(record)
            if series:
                told[record.fault]["series"] = findings.series_json(record)
        return told


class Experiment:
    """`stage` says what is being done now."""

    def __init__(self, plan: Plan, out: Path) -> None:
        self.plan = plan
        self.stage = "starting"
        self._out = out

    async def report(self) -> Report:
        """Run it all, and write `exactly-once.json` into the directory."""
        began, clock = datetime.now(UTC), time.monotonic()
        machine = figures.machine()
        scratch = Path(mkdtemp(prefix="motet-experiment-"))
        try:
            overhead = await self._overhead(scratch) if "overhead" in self.plan.parts else None
            records = await self._faults(scratch) if self.plan.faults else []
        except MotetError:
            raise  # it names the log of the broker that failed, which must stay
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        shutil.rmtree(scratch, ignore_errors=True)
        took_s = time.monotonic() - clock
        report = Report(self.plan, overhead, tuple(records), began, took_s, machine)
        text = json.dumps(report.to_json(series=True), ensure_ascii=False, allow_nan=False)
        self._out.mkdir(parents=True, exist_ok=True)
        (self._out / "exactly-once.json").write_text(text + "\n", encoding="utf-8")
        return report

    def _now(self, what: str) -> None:
        self.stage = what

    async def _overhead(self, scratch: Path) -> Overhead:
        self._now("overhead: two brokers start")
        folder = scratch / "overhead"
        folder.mkdir(parents=True)
        return await Measuring(self.plan.effort, folder, self._now).run()

    async def _faults(self, scratch: Path) -> list[Record]:
        self._now("the overlay of the faults starts")
        folder = scratch / "faults"
        folder.mkdir(parents=True)
        topology = paper.topology(free_ports(paper.MOST_BROKERS), self.plan.subscribers)
        records = []
        async with Overlay(topology, folder, proxied(links(topology))) as overlay:
            for fault in self.plan.faults:
                schedule = self.plan.schedules[fault]
                records.append(await Injection(overlay, fault, schedule, self._now).run())
        return records
