"""Records that are whole, by their checksums, but that no broker of this release has written."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.broker.core.records import encode
from motet.broker.folder.examination import examine
from motet.broker.folder.recovery import open_folder, open_log, read_durable
from motet.errors import LogCorrupted, StorageError
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Fact
from motet.protocol.machine import FACT, FOUNDED, PART
from motet.protocol.session.facts import SessionEnded

CONFIG = BrokerConfig("A")


def append(directory: Path, payload: bytes, kind: int = FACT) -> None:
    files = open_log(directory)
    files.append([payload], kind)
    files.shut()


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b"\xc1", FACT),
        (b"\x92\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x91\xa7unknown", FACT),
        (encode(Fact(-1.0, SessionEnded("alice", "A-1.1"))), FACT),
        (b"anything", PART),
        (b"anything", FOUNDED),
    ],
    ids=["no message", "an unknown fact", "time runs backwards", "a part", "a second beginning"],
)
def test_a_fact_that_makes_no_sense_is_named_by_its_number(
    tmp_path: Path, payload: bytes, kind: int
) -> None:
    directory = tmp_path / "A"
    files = open_folder(CONFIG, directory).journal.log
    files.shut()  # type: ignore[attr-defined]
    append(directory, payload, kind)
    named = rf"fact 2 in {directory}/journal makes no sense: .*move the folder away"
    with pytest.raises(LogCorrupted, match=named):
        open_folder(CONFIG, directory)
    with pytest.raises(LogCorrupted, match=named):
        read_durable(directory)
    (problem,) = examine(directory).problems
    assert "fact 2 in " in problem


def test_a_journal_without_a_beginning_names_its_folder(tmp_path: Path) -> None:
    append(tmp_path, b"anything")
    with pytest.raises(LogCorrupted, match=rf"fact 1 in {tmp_path}/journal makes no sense"):
        open_folder(CONFIG, tmp_path)


def test_a_folder_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from motet.broker.folder import recovery

    files = open_folder(CONFIG, tmp_path).journal.log
    files.shut()  # type: ignore[attr-defined]
    looks: list[int] = []
    read = recovery._read

    def disturbed(machine: object, directory: Path, upto: int | None) -> object:
        looks.append(1)
        if len(looks) < 3:
            (tmp_path / f"{len(looks)}").touch()
            raise StorageError("it was there a moment ago")
        return read(machine, directory, upto)

    monkeypatch.setattr(recovery, "_read", disturbed)
    assert read_durable(tmp_path)[1] == 1
    assert len(looks) == 3

    def hopeless(*_: object) -> object:
        looks.append(1)
        raise StorageError("it is broken")

    looks.clear()
    monkeypatch.setattr(recovery, "_read", hopeless)
    with pytest.raises(StorageError, match="it is broken"):
        read_durable(tmp_path)
    assert len(looks) == 1
