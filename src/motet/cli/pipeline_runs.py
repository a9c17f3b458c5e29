"""One run of a `motet pipeline` command: Spark started, progress while it works, tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from motet.audit.verdicts import GUARANTEES, Audit
from motet.cli.ending import FAILED, FINE
from motet.cli.pipeline_jobs import plainly
from motet.cli.voice import err, out, say, say_json, table
from motet.spark.session import BRIEF, require_java, require_pyspark, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "16",
    **BRIEF,
}
"""On this machine alone; whoever runs a cluster knows better."""
QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}

Tell = Callable[[str], None]


@contextmanager
def working(what: str, master: str) -> Iterator[tuple[SparkSession, Tell]]:
    """A session of Spark for one command, and a line that says what it does."""
    require_pyspark()
    require_java()
    conf = QUIET | (LOCAL if master.startswith("local") else {})
    with err().status(f"{what}: starting Spark on {master}") as line:
        spark = session(f"motet {what}", master=master, **conf)
        try:
            spark.sparkContext.setLogLevel("ERROR")
            yield spark, lambda text: line.update(f"{what}: {text}")
        finally:
            spark.stop()


@plainly
def audit(directory: str, master: str, slack_s: float, json: bool) -> int:
    """`motet pipeline audit`; the exit status."""
    require_pyspark()
    from motet.spark.audit import audit as judge
    from motet.spark.audit.tables import check_folder

    check_folder(directory)  # before Spark takes its time to start
    with working("audit", master) as (spark, tell):
        found = judge(spark, directory, tell, slack_s=slack_s)
    if json:
        say_json(found.as_dict())
    else:
        _show(found)
    return FINE if found.is_clean else FAILED


def _show(found: Audit) -> None:
    shown = table("", "guarantee", "checked", "violations", "what it says", right=NUMBERS)
    for name, meaning in GUARANTEES.items():
        checked, broken = found.checked.get(name, 0), found.violations(name)
        shown.add_row(name, f"{checked:,}", f"{broken:,}" if broken else "–", meaning)
    out().print(shown)
    for finding in found.findings:
        where = f" in run {finding.run}" if finding.run else ""
        say(f"\n{finding.guarantee}, {finding.kind}: {finding.count:,}{where}")
        for example in finding.examples:
            say(f"  {example}")
        if finding.count > len(finding.examples):
            say(f"  and {finding.count - len(finding.examples):,} more")
    verdict = "nothing is violated" if found.is_clean else "VIOLATED"
    say(f"\n{verdict} ({found.seconds:.1f} s)")


NUMBERS = ("checked", "violations")
