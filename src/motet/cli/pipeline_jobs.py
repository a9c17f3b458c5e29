"""What `motet pipeline` does: sessions of Spark, progress, tables.

Apart from its commands because it imports Spark, for which the other commands should not have to
wait.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from motet.cli.ending import FAILED, FINE, Misuse, debugging
from motet.cli.interrupt import ANEW, GOES_ON, interruptible, until_enough
from motet.cli.pipeline_bars import bar, watched
from motet.cli.voice import err, out, remark, say, say_json, table
from motet.pictures import check as check_pictures
from motet.spark import scratch
from motet.spark.failures import brief, end_of_jvm, hush, is_foreign
from motet.spark.filling import check_free
from motet.spark.session import require_java, require_pyspark, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from motet.spark.insight.following import Moment

POLL_S = 0.5
ENDED = "ended; the same command goes on from here"
REPORT = "the report follows, unless you interrupt once more"
SHOWN_ROWS = 20
CONF = {
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
    # A query is told to stop, and then whoever wanted it to has waited long enough.
    "spark.sql.streaming.stopTimeout": "2s",
}


def started(name: str, master: str | None, alone: Mapping[str, str] | None = None) -> SparkSession:
    """A session for one command, which says no more than it must. `alone` are settings for this
    machine, if no cluster is asked for."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    where = master or (None if submitted else "local[*]")
    conf = dict(CONF)
    if where is not None and where.startswith("local"):
        # 200, which it is otherwise, is for clusters: here each would be a task with nothing to do.
        conf["spark.sql.shuffle.partitions"] = str(2 * (os.cpu_count() or 1))
        conf |= alone or {}
    scratch.prepare()
    with err().status("Spark starts"):
        made = session(f"motet {name}", master=where, **conf)
    if debugging():
        made.sparkContext.setLogLevel("ERROR")
    else:
        hush(made)
    return made


def plainly(job: Callable[..., int]) -> Callable[..., int]:
    """A job whose errors are told like all others."""

    @functools.wraps(job)
    def told(*arguments: Any) -> int:
        try:
            return job(*arguments)
        except Exception as problem:
            if is_foreign(problem) or isinstance(problem, OSError | EOFError):
                gone = end_of_jvm()  # then any of these is what comes of it
                if gone is not None:
                    raise gone from problem
            if is_foreign(problem):
                raise brief(problem) from problem
            raise

    return told


# ── workload ─────────────────────────────────────────────────────────────────────────────


@interruptible(ANEW)
@plainly
def workload(
    kind: str, size: int, folder: Path, said: dict[str, Any], master: str | None, json: bool
) -> int:
    require_pyspark()
    from motet.spark import workload as made

    check_free(folder, "name an empty folder with --out")
    makers: dict[str, tuple[Callable[..., DataFrame], tuple[str, ...]]] = {
        "publications": (made.publications, ("seed", "popularity", "topics", "sites")),
        "subscriptions": (made.subscriptions, ("seed", "popularity", "topics", "sites")),
        "covering": (made.covering_subscriptions, ("seed", "shape")),
        "workflow": (made.workflow_log, ("seed", "agents", "processes")),
    }
    make, names = makers[kind]
    options = {name: said[name] for name in names}
    spark = started("workload", master)
    with watched(spark, kind):
        rows = made.store(
            make(spark, size, **options), folder, {"kind": kind, "size": size} | options
        )
    if json:
        say_json({"kind": kind, "size": size, **options, "rows": rows, "folder": str(folder)})
    else:
        say(f"{rows:,} rows of {kind}, seed {options['seed']}, in {folder}")
    return FINE


# ── archive ──────────────────────────────────────────────────────────────────────────────


@interruptible(GOES_ON)
@plainly
def archive(
    folder: Path,
    brokers: Sequence[str],
    filter: str,
    columns: str,
    available_now: bool,
    every_s: float,
    compact: bool,
    prove: bool,
    master: str | None,
    json: bool,
) -> int:
    require_pyspark()
    from motet.spark import archive as kept

    urls = ",".join(brokers)
    keeps = available_now or not (compact or prove)
    if (keeps or prove) and not brokers:
        raise Misuse("which brokers?", "--broker motet://127.0.0.1:7701; may be repeated")
    if (filter or columns) and not keeps:
        raise Misuse(
            "--filter and --columns say what is archived, and --compact and --prove alone archive "
            "nothing",
            "leave them out, or say --available-now",
        )
    wanted = [each.strip() for each in columns.split(",") if each.strip()]
    if keeps:  # told before Spark starts
        kept.check(folder, filter, wanted)
    else:
        kept.Manifest(folder).newest()
    spark = started("archive", master)
    told: dict[str, Any] = {"folder": str(folder)}
    if keeps:
        query = kept.keep(
            spark, urls, folder, filter=filter, columns=wanted,
            available_now=available_now, every_s=every_s,
        )  # fmt: skip
        follow_queries([query], "archiving", "" if available_now else ENDED)
    if compact:
        with watched(spark, "compacting"):
            told["compaction"] = msgspec.to_builtins(kept.compact(spark, folder))
    holds = True
    if prove:
        with watched(spark, "comparing"):
            proof = kept.prove(spark, urls, folder)
        holds = proof.holds
        told["proof"] = {**msgspec.to_builtins(proof), "holds": holds}
    version = kept.Manifest(folder).newest()
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
            say("archive and logs agree, row for row")
        if proof["apart"]:
            names = ", ".join(proof["apart"])
            say(f"not compared, because the logs have nothing of it any more: {names}")
    size = f"{told['rows']:,} events in {told['files']:,} files, {told['bytes']:,} bytes"
    say(f"{size}: {told['folder']}")


def follow_queries(
    queries: Sequence[StreamingQuery], what: str, told: str = "", *, until_quiet: bool = False
) -> None:
    """Until they end, or, if there is something to be `told` then, somebody has had enough. If one
    fails, all end."""
    rows, batches = 0, set[tuple[str, int]]()
    with ExitStack() as stack:
        stack.callback(_stop, queries, until_quiet)
        enough = stack.enter_context(until_enough(told)) if told else None
        progress = stack.enter_context(bar("events"))
        task = progress.add_task(what, total=None, remark="")
        while not enough and any(query.isActive for query in queries):
            for query in queries:
                query.awaitTermination(POLL_S / len(queries))
            for each in queries[0].recentProgress:
                if (key := (each["runId"], each["batchId"])) not in batches:
                    batches.add(key)
                    rows += each["numInputRows"]
            progress.update(task, completed=rows, remark=f"batch {len(batches):,}")
            if any(query.exception() is not None for query in queries):
                break
    if enough:  # a batch that was under way may have failed because of that; it runs again
        return
    for query in queries:
        problem = query.exception()
        if problem is not None:
            raise brief(problem) from problem


def _stop(queries: Sequence[StreamingQuery], until_quiet: bool) -> None:
    """`until_quiet`: no batch is under way any more. Otherwise it may be cut off when the command
    ends, and runs again."""
    for query in queries:
        while query.isActive:
            try:
                query.stop()
            except Exception as problem:
                if not is_foreign(problem):  # Spark's own: it takes longer than it may
                    raise
            if not until_quiet:
                break


# ── replay ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Repeat:
    """What `motet pipeline replay` was told."""

    source: Path
    brokers: Sequence[str]
    speed: str
    publishers: int
    columns: Sequence[str]
    advertise: str
    keys: bool
    run: str
    work: Path
    master: str | None


@interruptible(GOES_ON)
@plainly
def replay(asked: Repeat, json: bool) -> int:
    require_pyspark()
    from motet.runtime import loop
    from motet.spark.replay import Plan, Replay, Speed, Told, prepare

    if not asked.brokers:
        raise Misuse("which broker?", "--broker motet://127.0.0.1:7701; may be repeated")
    speed = Speed.parse(asked.speed)

    with ExitStack() as shown:

        def start() -> SparkSession:
            spark = started("replay", asked.master)
            shown.enter_context(watched(spark, "putting in order"))
            return spark

        plan: Plan = prepare(
            None, asked.source, asked.work, publishers=asked.publishers,
            names=chosen(asked.columns), brokers=asked.brokers, keys=asked.keys, run=asked.run,
            start=start,
        )  # fmt: skip
    for each in plan.remarks:
        remark(each)
    with bar("events") as progress:
        task = progress.add_task("replaying", total=plan.rows, remark="")

        def tell(told: Told) -> None:
            behind = f", {told.behind_s:.1f} s behind" if told.behind_s > 1 else ""
            remark_ = f"{told.per_s:,.0f}/s{behind}"
            progress.update(task, completed=told.before + told.published, remark=remark_)

        working = Replay(
            plan, asked.brokers, speed, advertise=asked.advertise, keys=asked.keys, tell=tell
        )
        told = loop.run(working.run())
        tell(told)
    if json:
        say_json({**msgspec.to_builtins(told), "per_s": told.per_s, "plan": plan.folder})
        return FINE
    if told.before == told.rows:
        say(f"all {told.rows:,} events were published before; --run NAME does it once more")
        return FINE
    before = f" ({told.before:,} before)" if told.before else ""
    say(f"{told.published:,} events{before} in {told.took_s:.1f} s, {told.per_s:,.0f}/s")
    if told.behind_s > 1:
        say(f"at most {told.behind_s:.1f} s later than the speed asks for")
    return FINE


def chosen(columns: Sequence[str]) -> dict[str, str]:
    found = {}
    for each in columns:
        name, equals, column = each.partition("=")
        if not (name and equals and column):
            raise Misuse(f"{each!r} names no column", "--column case='Case ID'")
        found[name.strip()] = column
    return found


# ── insight ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Question:
    """What `motet pipeline insight` was told."""

    source: Path | None
    brokers: Sequence[str]
    folder: Path
    follow: bool
    available_now: bool
    every_s: float
    late: str
    columns: Sequence[str]
    publish: str
    plots: bool
    master: str | None


@interruptible(lambda asked, _: GOES_ON if asked.follow else ANEW)
@plainly
def insight(asked: Question, json: bool) -> int:
    require_pyspark()
    require_java()
    from motet.spark import insight as found
    from motet.spark.insight import drawing, telling

    if (asked.source is None) == (not asked.brokers):
        raise Misuse("insight into what?", "name an archive or a log, or brokers with --broker")
    if asked.columns and asked.source is None:
        raise Misuse("--column is for logs of others", "events of brokers have attributes")
    if asked.plots:
        check_pictures("or leave them out with --no-plots")
    if asked.follow and not asked.brokers:
        raise Misuse("only a stream can be followed", "--broker motet://127.0.0.1:7701")
    spark = started("insight", asked.master)
    moment = _follow(spark, asked) if asked.follow else None
    with watched(spark, "looking"):
        events = _events(spark, asked, moment).cache()
        visits = found.visits(events) if moment is None else moment.visits(spark, asked.folder)
        report = found.report(events.count(), visits, found.pending(events))
        visits.write.mode("overwrite").parquet(str(asked.folder / "all-visits"))
    drawn = drawing.draw(report, asked.folder) if asked.plots else []
    told = msgspec.to_builtins(report, builtin_types=())
    asked.folder.mkdir(parents=True, exist_ok=True)
    (asked.folder / "insight.json").write_bytes(msgspec.json.encode(report))
    name, results = None, telling.events_of(report)
    if asked.publish and results:
        name = telling.publish(spark, results, asked.publish)
    if json:
        plots = [str(path) for path in drawn]
        say_json({**told, "transaction": name, "folder": str(asked.folder), "plots": plots})
        return FINE
    show_report(told)
    if name is not None:
        say(f"published in one transaction, {name}")
    elif asked.publish:
        say("nothing was published: there is nothing to tell")
    say("\n".join(map(str, (asked.folder / "insight.json", *drawn))))
    return FINE


def _events(spark: SparkSession, asked: Question, moment: Moment | None) -> DataFrame:
    from motet.spark import insight as found
    from motet.spark.archive.manifest import is_archive

    if asked.source is None:
        upto = None if moment is None else moment.upto
        return found.of_brokers(spark, ",".join(asked.brokers), upto=upto)
    if is_archive(asked.source):
        return found.of_archive(spark, asked.source)
    return found.of_log(spark, asked.source, chosen(asked.columns), remark)


def _follow(spark: SparkSession, asked: Question) -> Moment | None:
    """How far it has come. The report is of that moment, whatever is in the logs by then."""
    from motet.spark.insight import following, telling
    from motet.spark.insight.events import stream_of_brokers

    def news(rows: list[dict[str, Any]], key: str) -> None:
        if rows:
            telling.publish(spark, telling.events_in("step", rows), asked.publish, key=key)

    stream = stream_of_brokers(spark, ",".join(asked.brokers))
    queries = following.follow(
        stream, asked.folder, late=asked.late, available_now=asked.available_now,
        every_s=asked.every_s, news=news if asked.publish else None,
    )  # fmt: skip
    told = "" if asked.available_now else f"{ENDED}; {REPORT}"
    follow_queries(queries, "following", told, until_quiet=True)
    return following.moment_of(asked.folder)


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
