"""`motet pipeline audit`: progress while it works, and what it has found."""

from __future__ import annotations

from motet.audit.verdicts import GUARANTEES, Audit
from motet.cli.ending import FAILED, FINE
from motet.cli.interrupt import ANEW, interruptible
from motet.cli.pipeline_jobs import plainly, started
from motet.cli.voice import err, out, say, say_json, table
from motet.spark.session import BRIEF, require_java, require_pyspark

CONF = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "16", **BRIEF}
"""On this machine alone; whoever runs a cluster knows better."""


@interruptible(ANEW)
@plainly
def audit(directory: str, master: str | None, slack_s: float, json: bool) -> int:
    """`motet pipeline audit`; the exit status."""
    require_pyspark()
    from motet.spark.audit import audit as judge
    from motet.spark.audit.tables import check_folder

    check_folder(directory)  # before Spark takes its time to start
    require_java()
    spark = started("audit", master, CONF)
    try:
        with err().status("audit") as line:
            found = judge(spark, directory, lambda text: line.update(text), slack_s=slack_s)
    finally:
        spark.stop()
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
