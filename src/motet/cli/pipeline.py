"""`motet pipeline`: the commands that use Spark; Spark sessions, progress, tables.

Spark and modules that need it are imported when a command is called: other commands need neither
Spark nor Java, and do not wait for their imports.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from motet.cli.console import (
    FAILED,
    FINE,
    Misuse,
    debugging,
    err,
    out,
    remark,
    say,
    say_json,
    table,
)
from motet.cli.interrupt import ANEW, GOES_ON, interruptible, until_stop_request
from motet.cli.options import Json, Plots, argument, group, option, switch
from motet.pictures import check as check_pictures
from motet.spark.failures import brief, end_of_jvm, is_foreign
from motet.spark.output_folder import check_free
from motet.spark.quiet import hush, own_stderr, quiet_session
from motet.spark.session import (
    BRIEF,
    prepare_scratch,
    require_java,
    require_pyspark,
    session,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from rich.progress import Progress

    from motet.audit.verdicts import Audit
    from motet.spark.insight.stream import Moment
    from motet.spark.replay import ReplayProgress

POLL_S = 0.5
ENDED = "ended; run the same command again to continue"
REPORT = "the report follows, unless you interrupt once more"
SHOWN_ROWS = 20
CONF = {
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
    # The user has asked a query to stop, and should not wait longer for it.
    "spark.sql.streaming.stopTimeout": "2s",
}
AUDIT_CONF = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "16", **BRIEF}
"""Only for this machine; a cluster has its own settings."""
REFRESH_S = 0.3
BAR_COLUMNS = 24

pipeline = group("pipeline", "Archive, replay, analyse and audit events with Spark.")

Master = Annotated[
    str | None, option("URL", "Spark's master.", show_default="local[*], or that of spark-submit")
]
Seed = Annotated[int, option("N", "The same seed gives the same rows.")]
Brokers = Annotated[
    list[str] | None, option("URL", "Address of a broker; may be repeated.", "--broker")
]
Column = Annotated[
    list[str] | None,
    option(
        "NAME=COLUMN",
        "The column of a log that holds the case, step, agent, time, …; may be repeated.",
    ),
]
Filter = Annotated[str, option("FILTER", "The events to archive.", show_default="all")]
Now = Annotated[bool, switch("--available-now", "Stop after the events that are there now.")]
Every = Annotated[float, option("SECONDS", "Interval between two micro-batches.", min=0.1)]


class WorkloadKind(StrEnum):
    PUBLICATIONS = "publications"
    SUBSCRIPTIONS = "subscriptions"
    COVERING = "covering"
    WORKFLOW = "workflow"


class Popularity(StrEnum):
    GEOGRAPHIC = "geographic"
    SPRAY = "spray"


class CoveringShape(StrEnum):
    COVERED = "covered"
    CHAINED = "chained"
    TREE = "tree"
    DISTINCT = "distinct"
    RANDOM = "random"


# ── sessions ─────────────────────────────────────────────────────────────────────────────


def started(name: str, master: str | None, alone: Mapping[str, str] | None = None) -> SparkSession:
    """A session for one command. `alone` has settings for this machine, used without a cluster.
    Unless `--debug` is given, Spark prints nothing."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    where = master or (None if submitted else "local[*]")
    conf = dict(CONF)
    if where is not None and where.startswith("local"):
        # The default of 200 is for clusters: here most of these tasks would be empty.
        conf["spark.sql.shuffle.partitions"] = str(2 * (os.cpu_count() or 1))
        conf |= alone or {}
    folder = prepare_scratch()
    if debugging():
        made = session(f"motet {name}", master=where, **conf)
        made.sparkContext.setLogLevel("ERROR")
        return made
    with own_stderr(), err().status("Spark starts"):
        if folder is not None:
            return quiet_session(f"motet {name}", folder / "spark.log", master=where, **conf)
        made = session(f"motet {name}", master=where, **conf)
    hush(made)
    return made


def plainly(job: Callable[..., int]) -> Callable[..., int]:
    """A job whose errors from Spark are reported like all others."""

    @functools.wraps(job)
    def told(*arguments: Any, **options: Any) -> int:
        try:
            return job(*arguments, **options)
        except Exception as problem:
            if is_foreign(problem) or isinstance(problem, OSError | EOFError):
                gone = end_of_jvm()  # then the error is only a consequence
                if gone is not None:
                    raise gone from problem
            if is_foreign(problem):
                raise brief(problem) from problem
            raise

    return told


# ── progress ─────────────────────────────────────────────────────────────────────────────


def bar(unit: str) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=BAR_COLUMNS),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("{task.fields[remark]}"),
        console=err(),
        disable=not err().is_terminal,
    )


@contextmanager
def watched(spark: SparkSession, what: str) -> Iterator[None]:
    """Show how many tasks of the jobs that run now are done."""
    progress = bar("tasks")
    over = threading.Event()

    def look() -> None:
        with suppress(Exception):  # if Spark is gone, the job raises an error itself
            show()

    def show() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not over.wait(REFRESH_S):
            stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
            known: list[Any] = [each for each in stages if each is not None]
            total = sum(each.numTasks for each in known)
            done = sum(each.numCompletedTasks for each in known)
            names = ", ".join(dict.fromkeys(each.name.split(" at ")[0] for each in known))
            progress.update(task, completed=done, total=total or None, remark=names)

    with progress:
        task = progress.add_task(what, total=None, remark="")
        looking = threading.Thread(target=look, daemon=True)
        if not progress.disable:
            looking.start()
        try:
            yield
        finally:
            over.set()
            if looking.is_alive():
                looking.join()


def follow_queries(
    queries: Sequence[StreamingQuery], what: str, told: str = "", *, until_quiet: bool = False
) -> None:
    """Wait until the queries end or, if `told` is given, until the user interrupts them: then
    `told` is printed. If one fails, all end."""
    rows, batches = 0, set[tuple[str, int]]()
    with ExitStack() as stack:
        stack.callback(_stop, queries, until_quiet)
        stop_request = stack.enter_context(until_stop_request(told)) if told else None
        progress = stack.enter_context(bar("events"))
        task = progress.add_task(what, total=None, remark="")
        while not stop_request and any(query.isActive for query in queries):
            for query in queries:
                query.awaitTermination(POLL_S / len(queries))
            for each in queries[0].recentProgress:
                if (key := (each["runId"], each["batchId"])) not in batches:
                    batches.add(key)
                    rows += each["numInputRows"]
            progress.update(task, completed=rows, remark=f"batch {len(batches):,}")
            if any(query.exception() is not None for query in queries):
                break
    if stop_request:  # a batch that was interrupted may have failed because of that; it runs again
        return
    for query in queries:
        problem = query.exception()
        if problem is not None:
            raise brief(problem) from problem


def _stop(queries: Sequence[StreamingQuery], until_quiet: bool) -> None:
    """With `until_quiet`, wait until no batch runs. Otherwise a batch may be cut off when the
    command ends, and runs again."""
    for query in queries:
        while query.isActive:
            try:
                query.stop()
            except Exception as problem:
                if not is_foreign(problem):  # foreign: Spark's timeout for stopping
                    raise
            if not until_quiet:
                break


# ── commands ─────────────────────────────────────────────────────────────────────────────


@pipeline.command()
@interruptible(ANEW)
@plainly
def workload(
    kind: Annotated[WorkloadKind, typer.Argument(help="What to generate.")],
    size: Annotated[int, argument("SIZE", "Number of publications, clients or cases.", min=0)],
    out: Annotated[Path, option("DIR", "An empty folder for the Parquet files.")],
    seed: Seed = 0,
    popularity: Annotated[
        Popularity,
        typer.Option(help="How skewed: 80 % of choices go to 0.5 % (geographic) or 40 % (spray)."),
    ] = Popularity.GEOGRAPHIC,
    topics: Annotated[
        int, option("N", "Number of topics of publications and subscriptions.", min=1)
    ] = 1000,
    sites: Annotated[
        int, option("N", "Number of sites; each prefers topics of its own.", min=1)
    ] = 5,
    shape: Annotated[
        CoveringShape, typer.Option(help="How covering subscriptions cover each other.")
    ] = CoveringShape.RANDOM,
    agents: Annotated[int, option("N", "Number of agents of a workflow.", min=1)] = 40,
    processes: Annotated[int, option("N", "Number of processes of a workflow.", min=1)] = 3,
    master: Master = None,
    json: Json = False,
) -> int:
    """Generate events, subscriptions or a workflow as Parquet.

    \b
    publications   events on topics, by a power law, with favourites at each site
    subscriptions  subscriptions to topics, by the same law
    covering       subscriptions that cover each other in a given shape
    workflow       a log of cases that wait, are handled and handed over
    """
    require_pyspark()
    from motet.spark import workload as made

    check_free(out, "name an empty folder with --out")
    over_topics = {"popularity": popularity.value, "topics": topics, "sites": sites}
    makers: dict[str, tuple[Callable[..., DataFrame], dict[str, Any]]] = {
        "publications": (made.publications, over_topics),
        "subscriptions": (made.subscriptions, over_topics),
        "covering": (made.covering_subscriptions, {"shape": shape.value}),
        "workflow": (made.workflow_log, {"agents": agents, "processes": processes}),
    }
    make, chosen = makers[kind]
    options = {"seed": seed, **chosen}
    spark = started("workload", master)
    with watched(spark, kind):
        rows = made.store(
            make(spark, size, **options), out, {"kind": kind.value, "size": size} | options
        )
    if json:
        say_json({"kind": kind, "size": size, **options, "rows": rows, "folder": str(out)})
    else:
        say(f"{rows:,} rows of {kind}, seed {seed}, in {out}")
    return FINE


@pipeline.command()
@interruptible(GOES_ON)
@plainly
def archive(
    out: Annotated[Path, option("DIR", "Folder of the archive.")],
    broker: Brokers = None,
    filter: Filter = "",
    columns: Annotated[
        str, option("NAMES", "Attributes that get their own column, like level:int,room:text.")
    ] = "",
    available_now: Now = False,
    every: Every = 10.0,
    compact: Annotated[bool, switch("--compact", "Merge small files into large ones.")] = False,
    prove: Annotated[
        bool, switch("--prove", "Compare the archive with the logs, row by row.")
    ] = False,
    master: Master = None,
    json: Json = False,
) -> int:
    """Archive all events of brokers as Parquet, exactly once.

    It continues where the last run ended, and runs until Ctrl-C unless --available-now is given.
    --compact and --prove without --available-now archive nothing. Exit status 1 if --prove finds a
    difference.
    """
    require_pyspark()
    from motet.spark import archive as kept

    urls = ",".join(broker or [])
    keeps = available_now or not (compact or prove)
    if (keeps or prove) and not broker:
        raise Misuse("no broker is named", "add --broker motet://127.0.0.1:7701; may be repeated")
    if (filter or columns) and not keeps:
        raise Misuse(
            "--filter and --columns apply to archiving, but --compact and --prove alone archive "
            "nothing",
            "omit them, or add --available-now",
        )
    wanted = [each.strip() for each in columns.split(",") if each.strip()]
    if keeps:  # check before Spark starts
        kept.check(out, filter, wanted)
    else:
        kept.Manifest(out).newest()
    spark = started("archive", master)
    told: dict[str, Any] = {"folder": str(out)}
    if keeps:
        query = kept.keep(
            spark, urls, out, filter=filter, columns=wanted,
            available_now=available_now, every_s=every,
        )  # fmt: skip
        follow_queries([query], "archiving", "" if available_now else ENDED)
    if compact:
        with watched(spark, "compacting"):
            told["compaction"] = msgspec.to_builtins(kept.compact(spark, out))
    holds = True
    if prove:
        with watched(spark, "comparing"):
            proof = kept.prove(spark, urls, out)
        holds = proof.holds
        told["proof"] = {**msgspec.to_builtins(proof), "holds": holds}
    version = kept.Manifest(out).newest()
    told |= {"version": version.number, "files": len(version.files), "rows": version.rows}
    told |= {"bytes": version.size_bytes, "upto": dict(version.upto)}
    if json:
        say_json(told)
    else:
        _show_archive(told)
    return FINE if holds else FAILED


def _show_archive(told: dict[str, Any]) -> None:
    if "compaction" in told:
        done = told["compaction"]
        say(f"{done['files_before']:,} files before compaction, {done['files_after']:,} now")
    if "proof" in told:
        proof = told["proof"]
        titles = ("pubend", "from tick", "below tick", "in the archive", "in the log", "differing")
        shown = table("", *titles, right=titles[1:])
        for each in proof["pubends"]:
            shown.add_row(
                *(each["pubend"], str(each["since"]), str(each["upto"])),
                *(f"{each['archive_rows']:,}", f"{each['log_rows']:,}"),
                f"{each['differing']} of {each['ranges']} ranges",
            )
        out().print(shown)
        for what, count in proof["differences"].items():
            say(f"DIFFERS: {count:,} events are {what}")
        for each in proof["examples"]:
            say(f"  {each['what']}: {each['pubend']} tick {each['tick']}")
        if proof["holds"]:
            say("archive and logs agree in every row")
        if proof["apart"]:
            names = ", ".join(proof["apart"])
            say(f"not compared, because the logs no longer have their events: {names}")
    size = f"{told['rows']:,} events in {told['files']:,} files, {told['bytes']:,} bytes"
    say(f"{size}: {told['folder']}")


@pipeline.command()
@interruptible(GOES_ON)
@plainly
def replay(
    source: Annotated[Path, argument("FILE|DIR", "An archive, or a log as Parquet, CSV or XES.")],
    broker: Brokers = None,
    speed: Annotated[
        str,
        typer.Option(
            help="10x: ten times the recorded speed; 90s: everything within 90 s; max: no pauses."
        ),
    ] = "max",
    publishers: Annotated[int, option("N", "Number of concurrent publishers.", min=1)] = 1,
    column: Column = None,
    advertise: Annotated[str, option("FILTER", "What the publishers advertise.")] = "true",
    keys: Annotated[
        bool, switch("--keys", "Add attributes source.file and source.row to events.")
    ] = False,
    run: Annotated[str, option("NAME", "A new name publishes the same source once more.")] = "",
    work: Annotated[
        Path, option("DIR", "Folder for plans, which an interrupted run needs.")
    ] = Path("run/replay"),
    master: Master = None,
    json: Json = False,
) -> int:
    """Publish an archive or a workflow log again.

    Events are published in order of time; one client publishes all events of a case, or of a
    publisher of the archive. If the command is interrupted, the same command continues after the
    last event: no event is published twice.
    """
    require_pyspark()
    from motet.runtime import loop
    from motet.spark.replay import Replay, Speed, prepare

    if not broker:
        raise Misuse("no broker is named", "add --broker motet://127.0.0.1:7701; may be repeated")
    pace = Speed.parse(speed)

    with ExitStack() as shown:

        def start() -> SparkSession:
            spark = started("replay", master)
            shown.enter_context(watched(spark, "sorting"))
            return spark

        plan = prepare(
            None, source, work, publishers=publishers,
            names=chosen(column or []), brokers=broker, keys=keys, run=run,
            start=start,
        )  # fmt: skip
    for each in plan.remarks:
        remark(each)
    with bar("events") as progress:
        task = progress.add_task("replaying", total=plan.rows, remark="")

        def tell(told: ReplayProgress) -> None:
            behind = f", {told.behind_s:.1f} s behind" if told.behind_s > 1 else ""
            remark_ = f"{told.per_s:,.0f}/s{behind}"
            progress.update(task, completed=told.before + told.published, remark=remark_)

        working = Replay(plan, broker, pace, advertise=advertise, keys=keys, tell=tell)
        told = loop.run(working.run())
        tell(told)
    if json:
        say_json({**msgspec.to_builtins(told), "per_s": told.per_s, "plan": plan.folder})
        return FINE
    if told.before == told.rows:
        say(f"all {told.rows:,} events were already published; --run NAME publishes them again")
        return FINE
    before = f" ({told.before:,} earlier)" if told.before else ""
    say(f"{told.published:,} events{before} in {told.took_s:.1f} s, {told.per_s:,.0f}/s")
    if told.behind_s > 1:
        say(f"publishing was up to {told.behind_s:.1f} s behind schedule")
    return FINE


def chosen(columns: Sequence[str]) -> dict[str, str]:
    found = {}
    for each in columns:
        name, equals, column = each.partition("=")
        if not (name and equals and column):
            raise Misuse(f"{each!r} is not NAME=COLUMN", "write --column case='Case ID'")
        found[name.strip()] = column
    return found


@pipeline.command()
@interruptible(lambda **said: GOES_ON if said["follow"] or said["available_now"] else ANEW)
@plainly
def insight(
    source: Annotated[Path | None, argument("FILE|DIR", "An archive, or a workflow log.")] = None,
    broker: Brokers = None,
    out: Annotated[Path, option("DIR", "Folder for tables and plots.")] = Path("run/insight"),
    follow: Annotated[bool, switch("--follow", "Analyse the live stream until Ctrl-C.")] = False,
    available_now: Now = False,
    every: Every = 10.0,
    late: Annotated[str, option("SPAN", "With --follow: how late events may arrive.")] = "7 days",
    column: Column = None,
    publish: Annotated[
        str, option("URL", "Publish the results at this broker, in one transaction.")
    ] = "",
    plots: Plots = True,
    master: Master = None,
    json: Json = False,
) -> int:
    """Analyse workflow events.

    It reports how long steps wait and take, which agents hand over to which, which cases are open,
    and which steps took unusually long.

    The events come from an archive or a log; with --broker from the brokers' logs; with --follow
    from the live stream, which continues where the last run ended.
    """
    require_pyspark()
    require_java()
    from motet.spark import insight as found
    from motet.spark.insight.pictures import draw
    from motet.spark.insight.report import events_of
    from motet.spark.insight.report import publish as publish_events

    follow = follow or available_now
    if (source is None) == (not broker):
        raise Misuse(
            "no source of events is named", "name an archive or a log, or brokers with --broker"
        )
    if column and source is None:
        raise Misuse("--column applies only to foreign logs, not to --broker", "omit --column")
    if plots:
        check_pictures("or omit pictures with --no-plots")
    if follow and not broker:
        raise Misuse("--follow needs a live stream", "add --broker motet://127.0.0.1:7701")
    spark = started("insight", master)
    moment = (
        _follow(spark, broker or [], out, available_now, every, late, publish) if follow else None
    )
    with watched(spark, "analysing"):
        events = _events(spark, source, broker or [], column or [], moment).cache()
        visits = found.visits(events) if moment is None else moment.visits(spark, out)
        report = found.report(events.count(), visits, found.pending(events))
        visits.write.mode("overwrite").parquet(str(out / "all-visits"))
    drawn = draw(report, out) if plots else []
    told = msgspec.to_builtins(report, builtin_types=())
    out.mkdir(parents=True, exist_ok=True)
    (out / "insight.json").write_bytes(msgspec.json.encode(report))
    name, results = None, events_of(report)
    if publish and results:
        name = publish_events(spark, results, publish)
    if json:
        say_json({**told, "transaction": name, "folder": str(out), "plots": list(map(str, drawn))})
        return FINE
    show_report(told)
    if name is not None:
        say(f"published in one transaction, {name}")
    elif publish:
        say("nothing was published, because there are no results")
    say("\n".join(map(str, (out / "insight.json", *drawn))))
    return FINE


def _events(
    spark: SparkSession, source: Path | None, brokers: Sequence[str], columns: Sequence[str],
    moment: Moment | None,
) -> DataFrame:  # fmt: skip
    from motet.spark import insight as found
    from motet.spark.archive.manifest import is_archive

    if source is None:
        upto = None if moment is None else moment.upto
        return found.of_brokers(spark, ",".join(brokers), upto=upto)
    if is_archive(source):
        return found.of_archive(spark, source)
    return found.of_log(spark, source, chosen(columns), remark)


def _follow(
    spark: SparkSession, brokers: Sequence[str], folder: Path, available_now: bool, every_s: float,
    late: str, publish_at: str,
) -> Moment | None:  # fmt: skip
    """How far the queries have come. The report is of that moment, whatever the logs have now."""
    from motet.spark.insight.events import stream_of_brokers
    from motet.spark.insight.report import events_in, publish
    from motet.spark.insight.stream import follow, moment_of

    def news(rows: list[dict[str, Any]], key: str) -> None:
        if rows:
            publish(spark, events_in("step", rows), publish_at, key=key)

    stream = stream_of_brokers(spark, ",".join(brokers))
    queries = follow(
        stream, folder, late=late, available_now=available_now,
        every_s=every_s, news=news if publish_at else None,
    )  # fmt: skip
    told = "" if available_now else f"{ENDED}; {REPORT}"
    follow_queries(queries, "following", told, until_quiet=True)
    return moment_of(folder)


def show_report(told: dict[str, Any]) -> None:
    columns = ("visits", "waiting p50", "p95", "handling p50", "p95", "both p50", "p95")
    shown = table("", "process", "step", *columns, right=columns)
    for row in told["steps"][:SHOWN_ROWS]:
        times = [
            f"{kind}_p{share}_s"
            for kind in ("waiting", "handling", "sojourn")
            for share in (50, 95)
        ]
        shown.add_row(
            *(row["process"], row["step"], f"{row['visits']:,}"),
            *(duration(row[name]) for name in times),
        )
    out().print(shown)
    titles: tuple[str, ...] = ("giver", "taker", "count", "until done p50")
    shown = table("hand-overs", *titles, right=titles[2:])
    for row in told["handovers"][: SHOWN_ROWS // 2]:
        shown.add_row(
            row["giver"], row["taker"], f"{row['count']:,}", duration(row["sojourn_p50_s"])
        )
    out().print(shown)
    titles = ("case", "step", "agent", "took", "usually", "times")
    shown = table("unusual", *titles, right=titles[3:])
    for row in told["outliers"][: SHOWN_ROWS // 2]:
        took = (duration(row["sojourn_s"]), duration(row["usual_s"]), f"{row['times']:,.0f}")
        shown.add_row(row["case"], row["step"], row["agent"] or "–", *took)
    out().print(shown)
    say(f"{told['events']:,} events of {told['cases']:,} cases")
    unusual = f"{told['outlier_count']:,} steps took unusually long"
    say(f"{told['open_count']:,} cases are open, {unusual}")


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


@pipeline.command()
@interruptible(ANEW)
@plainly
def audit(
    directory: Annotated[str, argument("DIR", "Folder of histories.")],
    master: Master = None,
    slack: Annotated[
        float, option("SECONDS", "How far the clocks of the recorders may differ.", min=0.0)
    ] = 0.0,
    json: Json = False,
) -> int:
    """Check recorded histories against all guarantees.

    It finds lost, duplicated, misrouted and reordered events, and transactions that were split. All
    histories in the folder are checked together.

    Brokers and clients record a history if the environment variable MOTET_HISTORY names a folder,
    with `motet broker --history DIR`, and with `motet.connect(…, history=DIR)`; the simulator with
    `motet sim --history DIR`.

    Exit status 1 if a guarantee is violated; the events that prove it are printed.
    """
    require_pyspark()
    from motet.spark.audit import audit as judge
    from motet.spark.audit.history import check_folder

    check_folder(directory)  # before the slow start of Spark
    require_java()
    spark = started("audit", master, AUDIT_CONF)
    try:
        with err().status("audit") as line:
            found = judge(spark, directory, lambda text: line.update(text), slack_s=slack)
    finally:
        spark.stop()
    if json:
        say_json(found.as_dict())
    else:
        _show_audit(found)
    return FINE if found.is_clean else FAILED


def _show_audit(found: Audit) -> None:
    from motet.audit.verdicts import GUARANTEES

    numbers = ("checked", "violations")
    shown = table("", "guarantee", *numbers, "meaning", right=numbers)
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
    verdict = "no violations" if found.is_clean else "VIOLATED"
    say(f"\n{verdict} ({found.seconds:.1f} s)")


# ── placement ────────────────────────────────────────────────────────────────────────────


@pipeline.command()
@interruptible(ANEW)
@plainly
def placement(
    directory: Annotated[str, argument("HISTORY", "Folder of histories.")],
    sites: Annotated[
        Path, option("FILE", "The sites, and where topics live now, as for `motet sequencer`.")
    ],
    to: Annotated[
        Path | None, option("FILE", "Write the planned file of sites there.", "--out")
    ] = None,
    near: Annotated[
        float, option("MS", "One-way delay between a client and the site near it.", min=0.0)
    ] = 10.0,
    far: Annotated[
        float,
        option("MS", "One-way delay between two sites, or a client and another site.", min=0.0),
    ] = 100.0,
    delay: Annotated[
        list[str] | None, option("A-B=MS", "The delay between these two sites; may be repeated.")
    ] = None,
    seed: Annotated[int, option("N", "The same seed gives the same plan.")] = 0,
    master: Master = None,
    json: Json = False,
) -> int:
    """Plan where the topics of a sequencer should live.

    From a history that clients of motet.ordering have recorded, Spark counts who publishes where,
    and which topics streams combine. A local search then places topics and orders the line, so that
    the mean time until a number is given gets short. What it predicts is printed for the present
    placement and for the planned one.

    Topics with numbers cannot move: sites with the new file begin with empty folders.
    """
    require_pyspark()
    from motet.cli.placement import SitesToPlan

    planned = SitesToPlan.load(sites, near, far, delay or [])
    if to is not None and to.exists():
        raise Misuse(f"{to} exists", "remove it, or give --out another name")
    require_java()
    from motet.spark.placement import topic_graph

    spark = started("placement", master)
    try:
        with watched(spark, "counting"):
            recorded = topic_graph(spark, directory, planned.line)
    finally:
        spark.stop()
    with bar("rounds") as progress:
        task = progress.add_task("planning", total=None, remark="")

        def tell(done: int, of: int, mean_ms: float) -> None:
            progress.update(task, completed=done, total=of, remark=f"mean {mean_ms:.1f} ms")

        found = planned.plan(recorded, seed, tell)
    if recorded.strays:
        remark(f"{recorded.strays:,} publications came from near none of these sites")
    if to is not None:
        to.write_text(found.text)
    if json:
        say_json({**found.as_dict(), "file": None if to is None else str(to)})
        return FINE
    found.show()
    if to is not None:
        say(f"{to}: start sites with it and empty folders; topics with numbers cannot move")
    return FINE
