"""Frames that are written into sinks, what is found of them, and writers that fail on purpose."""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import LongType, StringType, StructType

import motet
from motet.spark.sink import BatchWriter, Staged, StreamWriter, sink_options_in
from motet.spark.source import MotetSource
from tests.waiting import JOB_S

SCHEMA = StructType().add("n", LongType()).add("room", StringType())
_names = count(1)


def a_sink() -> str:
    """A name that no other test has."""
    return f"sink-{next(_names)}"


def blocks(url: str, sink: str) -> dict[str, list[int]]:
    """By transaction, what a sink has published, in the order of the log."""
    found: dict[str, list[int]] = {}
    with motet.open_log_sync(url) as log:
        (account,) = log.describe()
        steps = log.outline(account.pubend, every_block=True).steps
        rows = [
            row
            for batch in log.read(columns=["tick", "publisher", "n:int"])
            for row in batch.rows()
            if row["publisher"] == sink
        ]
    for step in steps:
        if step.tx.startswith(f"{sink}/"):
            first = step.upto - step.events
            ns = [row["n"] for row in rows if first < row["tick"] <= step.upto]
            assert len(ns) == step.events, "a transaction is whole"
            found[step.tx] = ns
    assert sum(map(len, found.values())) == len(rows), "nothing is outside of transactions"
    return found


def arrow(ns: Sequence[int], room: str | None = "cellar") -> Any:
    return pyarrow.RecordBatch.from_pydict(
        {"n": list(ns), "room": pyarrow.array([room] * len(ns), pyarrow.string())}
    )


def writer(url: str, sink: str, **options: str) -> BatchWriter:
    return BatchWriter(sink_options_in({"brokers": url, "sink": sink, **options}), SCHEMA)


def shipped(made: Any) -> Any:
    """As it comes to another process."""
    return pickle.loads(pickle.dumps(made))


class Files:
    """A stream of files, each of which is one batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inbox = folder / "inbox"
        self.inbox.mkdir(exist_ok=True)
        self._count = len(list(self.inbox.iterdir()))

    def put(self, ns: Sequence[int]) -> None:
        self._count += 1
        lines = "".join(json.dumps({"n": n, "room": "cellar"}) + "\n" for n in ns)
        path = self.inbox / f"{self._count:03}.json"
        path.write_text(lines)
        os.utime(path, (self._count, self._count))  # Spark takes them by their times

    def into(
        self,
        spark: SparkSession,
        url: str,
        sink: str,
        *,
        checkpoint: str = "checkpoint",
        format: str = "motet",
        **options: str,
    ) -> StreamingQuery:
        """Write all that is there, and no more."""
        frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        query = (
            frame.json(str(self.inbox))
            .repartition(2)
            .writeStream.format(format)
            .options(brokers=url, sink=sink, **options)
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(JOB_S)
        finally:
            query.stop()
        return query

    def forget_commit(self, batch: int, checkpoint: str = "checkpoint") -> None:
        """As if the driver had been killed before Spark wrote down that the batch is done."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.folder / checkpoint / "commits" / name).unlink(missing_ok=True)


class Flaky(StreamWriter):
    """Once, it raises when its batch is committed."""

    def __init__(self, *given: Any, flag: str) -> None:
        super().__init__(*given)
        self._flag = Path(flag)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        if not self._flag.exists():
            self._flag.write_text("raised")
            raise RuntimeError("after success")


class FlakySource(MotetSource):
    @classmethod
    def name(cls) -> str:
        return "flaky"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        del overwrite
        options = dict(self.options)
        flag = options.pop("flag")
        return Flaky(sink_options_in(options), schema, flag=flag)


class Failing(BatchWriter):
    """Its tasks fail once each, when everything is staged."""

    def __init__(self, *given: Any, folder: str) -> None:
        super().__init__(*given)
        self._folder = Path(folder)

    def write(self, iterator: Iterator[Any]) -> Staged:
        staged = super().write(iterator)
        flag = self._folder / f"failed-{staged.part.partition}"
        if not flag.exists():
            flag.write_text(staged.part.name)
            raise RuntimeError("a task fails when it is done")
        return staged


class FailingSource(MotetSource):
    @classmethod
    def name(cls) -> str:
        return "failing"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        del overwrite
        options = dict(self.options)
        folder = options.pop("folder")
        return Failing(sink_options_in(options), schema, folder=folder)


class Doomed(StreamWriter):
    """When its batch is committed, the driver of the job is killed."""

    def __init__(self, *given: Any, victims: str) -> None:
        super().__init__(*given)
        self._victims = victims

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        for victim in self._victims.split(","):
            os.kill(int(victim), signal.SIGKILL)


class DoomedSource(MotetSource):
    @classmethod
    def name(cls) -> str:
        return "doomed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        del overwrite
        options = dict(self.options)
        victims = options.pop("victims")
        return Doomed(sink_options_in(options), schema, victims=victims)
