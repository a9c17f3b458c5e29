"""Plans on disk: who goes on with one goes on with exactly that, or is told what is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from motet.errors import Disconnected, EventError, MisuseError, NotAdvertised, StorageError
from motet.spark.archive.manifest import ArchiveFile, Manifest, Version
from motet.spark.replay import Replay, ReplayPlan, Speed, logs, prepare, publishers
from motet.spark.replay import plan as plans
from motet.spark.replay.plan import alone

NOWHERE = "motet://127.0.0.1:9"
ROWS = [
    {"_time_us": at, "_publisher": at % 2, "_file": "file:///l/log.csv", "_row": at, "n": at}
    for at in range(10)
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text("time,n\n")
    return path


@pytest.fixture
def plan(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ReplayPlan]:
    """Made without Spark, of the rows above."""

    def write(rows: list[dict[str, Any]], folder: Path, _: int) -> None:
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows[:5]), folder / "part-0.parquet")
        pq.write_table(pa.Table.from_pylist(rows[5:]), folder / "part-1.parquet")

    monkeypatch.setattr(logs, "write", write)

    def made(rows: list[dict[str, Any]] | None = None, **said: Any) -> ReplayPlan:
        monkeypatch.setattr(logs, "of_log", lambda *_: (rows or ROWS, len(ROWS), ["a remark"]))
        spark: Any = object()
        return prepare(spark, log, tmp_path / "work", publishers=2, **said)

    return made


def run(plan: ReplayPlan, **said: Any) -> None:
    asyncio.run(Replay(plan, [NOWHERE], Speed.parse("max"), **said).run())


def test_a_plan_is_found_again_unchanged(plan: Callable[..., ReplayPlan], tmp_path: Path) -> None:
    made = plan()
    assert (made.rows, made.shares, made.first_us, made.last_us) == (10, (5, 5), 0, 9)
    assert made.remarks == ("a remark",)
    assert plan() == made
    made.check()
    shutil.move(tmp_path / "work", tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", tmp_path / "work")
    shutil.rmtree(tmp_path / "moved")
    assert [row for rows in plan().batches() for row in rows] == ROWS


@pytest.mark.parametrize(
    "damage",
    [
        lambda note: note.write_bytes(note.read_bytes()[:-9]),
        lambda note: note.write_bytes(b""),
        lambda note: note.write_bytes(b"\xff\xfe"),
        lambda note: note.write_text("{}"),
        lambda note: note.write_text(json.dumps({**json.loads(note.read_text()), "format": 1})),
    ],
)
def test_a_damaged_note_of_a_plan_is_an_error(
    plan: Callable[..., ReplayPlan], damage: Callable[[Path], None]
) -> None:
    note = Path(plan().folder, "_plan.json")
    damage(note)
    with pytest.raises(StorageError, match=r"_plan\.json is damaged, truncated, or written by"):
        plan()
    assert note.exists(), "nothing was removed"


def test_a_plan_of_another_replay_is_an_error(plan: Callable[..., ReplayPlan]) -> None:
    one, other = plan(), plan(run="other")
    shutil.copy(Path(one.folder, "_plan.json"), other.folder)
    with pytest.raises(StorageError, match=r"is the plan of another replay, of .*log\.csv"):
        plan(run="other")


def test_a_plan_without_its_note_is_made_again_only_if_it_was_not_begun(
    plan: Callable[..., ReplayPlan],
) -> None:
    made = plan()
    Path(made.folder, "_plan.json").unlink()
    assert plan() == made
    made.remember("_begun")
    Path(made.folder, "_plan.json").unlink()
    with pytest.raises(StorageError, match=r"_plan\.json is missing, but events of this plan were"):
        plan()
    assert made.has("_begun")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda part: part.unlink(), r"part-1\.parquet is missing"),
        (lambda part: part.write_bytes(part.read_bytes()[:-1]), r"part-1\.parquet is damaged"),
        (
            lambda part: part.write_bytes(part.read_bytes().replace(b"log", b"lag")),
            r"part-1\.parquet is damaged, or was changed since",
        ),
        (
            lambda part: shutil.copy(part, part.with_name("part-2.parquet")),
            r"part-2\.parquet does not belong to this plan",
        ),
    ],
)
def test_a_plan_whose_files_changed_is_not_published(
    plan: Callable[..., ReplayPlan], damage: Callable[[Path], None], said: str
) -> None:
    made = plan()
    damage(Path(made.folder, "part-1.parquet"))
    with pytest.raises(StorageError, match=said):
        run(plan())
    assert not made.has("_begun")


@pytest.mark.parametrize("text", ["", "{", '{"mark": "another", "rows": 10}', '{"rows": 10}'])
def test_the_done_mark_of_a_plan_must_confirm_its_events(
    plan: Callable[..., ReplayPlan], text: str
) -> None:
    made = plan()
    made.remember("_done")
    run(made)  # nothing to do, so no broker is needed
    Path(made.folder, "_done").write_text(text)
    with pytest.raises(StorageError, match=r"_done does not confirm that the 10 events of this"):
        run(plan())


def test_a_log_that_changed_is_told(plan: Callable[..., ReplayPlan], log: Path) -> None:
    made = plan()
    log.write_text("time,n\nmore\n")
    second = plan()
    assert second.mark != made.mark
    assert second.remarks == ("a remark",), "of the first, nothing was published"
    second.remember("_begun")
    log.write_text("time,n\nmore and more\n")
    with pytest.raises(
        MisuseError, match=rf"{log} has changed since .*{second.mark}.*had 12 bytes"
    ):
        plan()
    assert plan(run="anew").rows == 10
    second.remember("_done")
    changed, _ = plan().remarks
    assert f"{log} has changed since its plan {second.folder} was made" in changed


def test_a_log_that_changes_while_it_is_read_is_refused(
    plan: Callable[..., ReplayPlan], log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = logs.write

    def late(*given: Any) -> None:
        write(*given)
        os.utime(log, ns=(0, 0))

    monkeypatch.setattr(logs, "write", late)
    with pytest.raises(MisuseError, match="changed while it was read"):
        plan()
    assert list((tmp_path / "work").iterdir()) == []


def test_a_plan_has_as_many_events_as_its_log(
    plan: Callable[..., ReplayPlan], tmp_path: Path
) -> None:
    """Whatever makes Spark pass over files, nothing is lost by it."""
    with pytest.raises(StorageError, match=r"log\.csv has 10 events, but Spark has read 9 of them"):
        plan(ROWS[:9])
    assert list((tmp_path / "work").iterdir()) == []


def test_a_plan_with_an_invalid_row_publishes_nothing(
    plan: Callable[..., ReplayPlan],
) -> None:
    long = plan([{**row, "text": "x" * (1 << 20) if row["n"] == 9 else "x"} for row in ROWS])
    with pytest.raises(
        EventError, match=r"nothing was published, because log\.csv, row 9 .* bytes"
    ):
        run(long)
    with pytest.raises(NotAdvertised, match=r"row 9 .* outside the advertised space, n < 9"):
        run(plan(run="other"), advertise="n < 9")
    assert not long.has("_begun")


def test_a_plan_is_made_and_published_by_one_at_a_time(plan: Callable[..., ReplayPlan]) -> None:
    """Else the slower of two equal commands removes what the other publishes."""
    made = plan()
    with alone(Path(made.folder)):
        assert plan() == made, "it is there, and whole"
        with pytest.raises(
            MisuseError, match=r"another process is running the same replay in .*--run NAME"
        ):
            run(made)
        Path(made.folder, "_plan.json").unlink()
        with pytest.raises(MisuseError, match="another process is running the same replay"):
            plan()
        assert len(list(Path(made.folder).glob("*.parquet"))) == 2
    assert plan() == made
    assert not list(Path(made.folder).parent.glob("*.lock"))


def test_a_plan_finished_by_another_process_during_the_start_of_spark_is_used(
    plan: Callable[..., ReplayPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan()
    looks = []
    look = plans.found

    def late(*given: Any) -> ReplayPlan | None:
        looks.append(given)
        return look(*given) if len(looks) > 1 else None

    monkeypatch.setattr(plans, "found", late)
    monkeypatch.delattr(logs, "write")
    assert plan() == made
    assert len(looks) == 2


def archived(folder: Path, ticks: int) -> Manifest:
    manifest = Manifest(folder)
    manifest.begin("", (), {"B1.1": 0})
    kept = ArchiveFile("events/a", "2026-01-02", "B1.1", ticks, 10, 0, ticks - 1)
    manifest.append([kept], {"B1.1": ticks})
    return manifest


def test_events_archived_while_a_plan_is_made_are_not_in_it(
    plan: Callable[..., ReplayPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And if there are other rows than its version has, it is no plan."""
    plan()  # so that it is written without Spark
    archive = archived(tmp_path / "kept", 10)
    seen: list[Version] = []

    def read(_: object, __: Path, version: Version) -> list[dict[str, Any]]:
        seen.append(version)
        return ROWS[: version.rows]

    def start() -> Any:
        archive.append([], {"B1.1": 20})
        return object()

    monkeypatch.setattr(logs, "of_archive", read)
    work = tmp_path / "other"
    made = prepare(None, archive.folder, work, publishers=2, start=start)
    assert (made.rows, made.made.upto) == (10, (("B1.1", 10),))
    assert [dict(each.upto) for each in seen] == [{"B1.1": 10}]
    grown = ArchiveFile("events/b", "2026-01-02", "B1.1", 1, 10, 20, 20)
    archive.append([grown], {"B1.1": 21})
    with pytest.raises(StorageError, match="has 11 events, but Spark has read 10 of them"):
        prepare(None, archive.folder, work, publishers=2, start=object)  # type: ignore[arg-type]


def test_columns_of_an_archive_are_not_chosen(tmp_path: Path) -> None:
    """It would change nothing but the name of the plan, and publish all of it again."""
    folder = archived(tmp_path / "kept", 10).folder
    with pytest.raises(MisuseError, match=r"is an archive, .* omit --column"):
        prepare(None, folder, tmp_path / "work", names={"case": "id"})
    assert not (tmp_path / "work").exists()


def test_files_of_plans_are_closed(
    plan: Callable[..., ReplayPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    class Noted(pq.ParquetFile):  # type: ignore[misc]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            opened.append(self)

    monkeypatch.setattr(pq, "ParquetFile", Noted)
    rows = plan().batches()
    next(rows)
    assert [each.closed for each in opened] == [True, True, False]
    rows.close()
    assert all(each.closed for each in opened)


class Leaving:
    """A client that publishes anything, and fails at the end."""

    session = SimpleNamespace(resumed=False, published=0)

    def __init__(self, client_id: str, failing: str) -> None:
        self.client_id, self._failing = client_id, failing
        self.closed: dict[str, Any] | None = None

    async def publish(self, *_: object) -> None:
        pass

    async def advertise(self, *_: object, **__: object) -> None:
        if self._failing == "advertise" and self.client_id.endswith("1"):
            raise NotAdvertised("not here")

    async def flush(self) -> None:
        pass

    async def close(self, **how: Any) -> None:
        self.closed = how
        if self.client_id.endswith("0"):
            raise Disconnected("the broker is gone")


@pytest.mark.parametrize("failing", ["", "advertise"])
def test_all_clients_are_closed_even_if_one_fails(
    plan: Callable[..., ReplayPlan], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """And once all is published, a goodbye that fails does not change that."""
    clients: list[Leaving] = []

    async def connect(_: str, *, client_id: str, **__: object) -> Leaving:
        clients.append(Leaving(client_id, failing))
        return clients[-1]

    monkeypatch.setattr(publishers, "connect", connect)
    made = plan()
    if failing:
        with pytest.raises(NotAdvertised, match="not here"):
            run(made)
    else:
        run(made)
    assert made.is_done == (not failing)
    how = {"timeout": 1.0 if failing else 10.0, "discard_session": not failing}
    assert [each.closed for each in clients] == [how, how]
