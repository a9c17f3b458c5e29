"""A torn tail is cut, anything else stops; nothing passes silently (decision 0014)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from motet.errors import LogCorrupted
from motet.runtime.log import inspect
from motet.runtime.log.folder import CLOSED
from motet.runtime.log.layout import SEAL_BYTES
from tests.unit.log.ground import build, contents, mended, open_log, segments, twin

SMALL = [[b"a", b"", b"ccc\0"], [b"dd"], [b"", b"e" * 40, b"\0" * 3], [b"last\0", b"", b"\x80"]]
LARGE = [
    [bytes([65 + at]) * size for at, size in enumerate(sizes)]
    for sizes in ([700, 20], [300, 300, 300], [40, 513, 1200, 9], [600, 30, 700, 7, 100])
]
ZEROS = [[bytes(600), b"x"], [bytes(2000), bytes(30)], [b"y", bytes(1500), bytes(700)]]


def flat(groups: list[list[bytes]]) -> list[bytes]:
    return [payload for group in groups for payload in group]


# ── torn tails ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_batched", [True, False])
@pytest.mark.parametrize("groups", [SMALL, LARGE, ZEROS], ids=["small", "large", "zeros"])
def test_a_file_cut_anywhere_in_its_last_group(
    tmp_path: Path, groups: list[list[bytes]], is_batched: bool
) -> None:
    sizes = build(tmp_path / "log", groups, is_batched=is_batched)
    (path,) = segments(tmp_path / "log")
    whole, everything = path.read_bytes(), flat(groups)
    for size in range(sizes[-2], sizes[-1]):
        path.write_bytes(whole[:size])
        found = contents(tmp_path / "log")
        assert found == everything[: len(found)]
        assert len(found) >= len(everything) - len(groups[-1])
        if size % 16 == 0:
            assert inspect(tmp_path / "log")[0].problem == ""


def test_cutting_a_torn_tail_is_durable_and_the_log_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "log"
    sizes = build(folder, LARGE)
    (path,) = segments(folder)
    path.write_bytes(path.read_bytes()[: sizes[-1] - 3])
    found, cut_bytes = mended(folder)
    assert found == flat(LARGE)[:-1]
    assert f"cut {cut_bytes} bytes" in caplog.text
    assert str(path) in caplog.text
    assert mended(folder) == (found, 0)
    log = open_log(folder)
    assert log.append([b"next"]) == len(found) + 1
    log.shut()
    assert contents(folder) == [*found, b"next"]


@pytest.mark.parametrize("is_batched", [True, False])
@pytest.mark.parametrize("sector_bytes", [512, 4096])
def test_sectors_that_never_reached_the_disk(
    tmp_path: Path, sector_bytes: int, is_batched: bool
) -> None:
    chance = random.Random(5)
    group = [chance.randbytes(chance.randrange(1, 900)) for _ in range(40)]
    groups = [*LARGE, group]
    sizes = build(tmp_path / "log", groups, is_batched=is_batched)
    (path,) = segments(tmp_path / "log")
    whole, begin, end = path.read_bytes(), sizes[-2], sizes[-1]
    starts = range(begin - begin % sector_bytes, end, sector_bytes)
    for number in range(60):
        torn = bytearray(whole)
        missing = [starts[number]] if number < len(starts) else chance.sample(starts, 2)
        for start in missing:
            first, last = max(start, begin), min(start + sector_bytes, end)
            torn[first:last] = bytes(last - first)
        path.write_bytes(torn)
        found = contents(tmp_path / "log")
        assert len(flat(LARGE)) <= len(found) < len(flat(groups))
        assert found == flat(groups)[: len(found)]


def test_a_file_that_grew_before_its_data_came(tmp_path: Path) -> None:
    """The end of the file is new, what is in it is zeros: from any point of the last group on."""
    sizes = build(tmp_path / "log", LARGE)
    (path,) = segments(tmp_path / "log")
    whole = path.read_bytes()
    boundaries = [at for at in range(sizes[-2], sizes[-1]) if at % 512 == 0 or at == sizes[-2]]
    for at in boundaries:
        path.write_bytes(whole[:at] + bytes(len(whole) - at))
        found = contents(tmp_path / "log")
        assert found == flat(LARGE)[: len(found)]
        assert len(found) >= len(flat(LARGE[:-1]))


# ── damage ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("segment_bytes", "bits"), [(100, (5,)), (1 << 20, range(8))], ids=["segments", "one segment"]
)
def test_every_flipped_bit_of_a_small_log_stops(
    tmp_path: Path, segment_bytes: int, bits: Sequence[int]
) -> None:
    build(tmp_path / "log", SMALL, segment_bytes=segment_bytes)
    for path in [*segments(tmp_path / "log"), tmp_path / "log" / "begins"]:
        whole = path.read_bytes()
        for at in range(len(whole)):
            for bit in bits:
                flipped = bytearray(whole)
                flipped[at] ^= 1 << bit
                path.write_bytes(flipped)
                with pytest.raises(LogCorrupted, match=path.name.replace(".", r"\.")):
                    contents(tmp_path / "log")
        path.write_bytes(whole)
    assert contents(tmp_path / "log") == flat(SMALL)


@pytest.mark.parametrize("is_batched", [True, False])
@pytest.mark.parametrize("groups", [LARGE, ZEROS], ids=["large", "zeros"])
def test_flipped_bits_all_over_a_larger_log_stop(
    tmp_path: Path, groups: list[list[bytes]], is_batched: bool
) -> None:
    build(tmp_path / "log", groups, is_batched=is_batched)
    (path,) = segments(tmp_path / "log")
    whole = path.read_bytes()
    for at in range(0, len(whole), 5):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        with pytest.raises(LogCorrupted):
            contents(tmp_path / "log")
        assert inspect(tmp_path / "log")[0].problem


def test_flipped_bits_of_the_closing_mark_stop(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    build(folder, SMALL)
    mended(folder)
    whole = (folder / CLOSED).read_bytes()
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        (folder / CLOSED).write_bytes(flipped)
        with pytest.raises(LogCorrupted, match="closed"):
            contents(folder)


def test_zeroed_sectors_of_an_older_group_stop(tmp_path: Path) -> None:
    groups = [[bytes([66 + at]) * 700] for at in range(12)]
    sizes = build(tmp_path / "log", groups)
    (path,) = segments(tmp_path / "log")
    whole = path.read_bytes()
    for start in range(512, sizes[-2] - 512, 512):
        path.write_bytes(whole[:start] + bytes(512) + whole[start + 512 :])
        with pytest.raises(LogCorrupted, match="synced"):
            contents(tmp_path / "log")


def test_overwritten_records_stop(tmp_path: Path) -> None:
    """Whatever stands there instead: it never passes, and is never cut. (Unless it is exactly the
    length and the checksum of the very last batch: decision 0014.)"""
    chance = random.Random(3)
    build(tmp_path / "log", LARGE)
    (path,) = segments(tmp_path / "log")
    whole = path.read_bytes()
    for _ in range(500):
        size = chance.randrange(9, 40)
        at = chance.randrange(len(whole) - size)
        other = bytes(chance.randrange(1, 256) for _ in range(size))
        path.write_bytes(whole[:at] + other + whole[at + size :])
        with pytest.raises(LogCorrupted):
            contents(tmp_path / "log")


def test_records_missing_doubled_or_swapped_stop(tmp_path: Path) -> None:
    groups = [[b"one"], [b"two"], [b"six"], [b"ten"]]
    sizes = build(tmp_path / "log", groups)
    (path,) = segments(tmp_path / "log")
    whole = path.read_bytes()
    a, b, c, d = (whole[at - (sizes[1] - sizes[0]) : at] for at in sizes)
    head = whole[: sizes[0] - len(a)]
    for records in ([b, c, d], [a, c, d], [a, a, b, c, d], [a, c, b, d], [a, b, b, c, d]):
        path.write_bytes(head + b"".join(records))
        with pytest.raises(LogCorrupted, match=r"record \d at offset \d+"):
            contents(tmp_path / "log")


def test_records_of_another_log_stop(tmp_path: Path) -> None:
    for name, word in (("log", b"a"), ("other", b"b")):
        build(tmp_path / name, [[word * 9]] * 4, segment_bytes=80)
    for mine, theirs in zip(
        segments(tmp_path / "log")[1:], segments(tmp_path / "other")[1:], strict=True
    ):
        kept = mine.read_bytes()
        mine.write_bytes(theirs.read_bytes())
        with pytest.raises(LogCorrupted):
            contents(tmp_path / "log")
        mine.write_bytes(kept)


def test_garbage_behind_a_log_stops(tmp_path: Path) -> None:
    build(tmp_path / "log", SMALL)
    (path,) = segments(tmp_path / "log")
    whole = path.read_bytes()
    path.write_bytes(whole + b"\x03\x00garbage" * 9)
    with pytest.raises(LogCorrupted, match="record 11"):
        contents(tmp_path / "log")


def test_garbage_too_short_to_be_a_record_is_cut(tmp_path: Path) -> None:
    build(tmp_path / "log", SMALL)
    (path,) = segments(tmp_path / "log")
    path.write_bytes(path.read_bytes() + b"garbage")
    assert mended(tmp_path / "log") == (flat(SMALL), 7)


# ── files ────────────────────────────────────────────────────────────────────────────────


def several(folder: Path) -> list[Path]:
    """Four segments with records, and an open one without."""
    groups = [[b"%d" % at * 30, b"x"] for at in range(4)]
    build(folder, groups, segment_bytes=100, roll=True, is_batched=True)
    found = segments(folder)
    assert [int(path.stem) for path in found] == [1, 3, 5, 7, 9]
    return found


@pytest.mark.parametrize(
    ("which", "words"),
    [(0, "records 1 to 2"), (1, "records 3 to 4"), (3, "records 7 to 8"), (4, "with record 9")],
)
def test_a_missing_segment_stops(tmp_path: Path, which: int, words: str) -> None:
    several(tmp_path / "log")[which].unlink()
    with pytest.raises(LogCorrupted, match=words):
        open_log(tmp_path / "log")
    assert any(words in report.problem for report in inspect(tmp_path / "log"))


def test_all_segments_missing_stops(tmp_path: Path) -> None:
    for path in several(tmp_path / "log"):
        path.unlink()
    with pytest.raises(LogCorrupted, match="all segments are missing"):
        open_log(tmp_path / "log")
    assert "all segments" in inspect(tmp_path / "log")[0].problem


def test_a_trimmed_log_notices_a_missing_first_segment(tmp_path: Path) -> None:
    several(tmp_path / "log")
    log = open_log(tmp_path / "log")
    log.trim(4)
    log.shut()
    assert mended(tmp_path / "log")[0] == [b"2" * 30, b"x", b"3" * 30, b"x"]
    segments(tmp_path / "log")[0].unlink()
    with pytest.raises(LogCorrupted, match="records 5 to 6"):
        open_log(tmp_path / "log")


def test_a_segment_truncated_anywhere_but_in_the_last_file_stops(tmp_path: Path) -> None:
    for path in several(tmp_path / "log")[:-1]:
        whole = path.read_bytes()
        for size in range(len(whole)):
            path.write_bytes(whole[:size])
            if path.stem.endswith("7") and size >= len(whole) - SEAL_BYTES:
                continue  # the seal of the last but one: a crash in the middle of rolling is fine
            with pytest.raises(LogCorrupted, match=path.name):
                contents(tmp_path / "log")
        path.write_bytes(whole)


def test_a_truncated_header_stops(tmp_path: Path) -> None:
    path = several(tmp_path / "log")[-1]
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(LogCorrupted, match="header is cut short"):
            contents(tmp_path / "log")


def test_a_crash_in_the_middle_of_rolling_is_no_damage(tmp_path: Path) -> None:
    """The new segment is there, and the seal of the old one is not, or not whole."""
    sealed = several(tmp_path / "log")[-2]
    whole = sealed.read_bytes()
    for missing in range(1, SEAL_BYTES + 1):
        folder = twin(tmp_path / "log", "copy")
        (folder / sealed.name).write_bytes(whole[:-missing])
        assert len(contents(folder)) == 8
        assert not any(report.problem for report in inspect(folder))
        assert len(mended(folder)[0]) == 8
        assert (folder / sealed.name).read_bytes() == whole


def test_unfinished_files_are_swept(tmp_path: Path) -> None:
    several(tmp_path / "log")
    left = tmp_path / "log" / "00000000000000000011.log.new"
    left.write_bytes(b"half a head")
    mended(tmp_path / "log")
    assert not left.exists()


def test_a_renamed_segment_stops(tmp_path: Path) -> None:
    path = several(tmp_path / "log")[0]
    path.rename(path.with_name(f"{2:020d}.log"))
    with pytest.raises(LogCorrupted, match="renamed"):
        open_log(tmp_path / "log")


# ── the closing mark ─────────────────────────────────────────────────────────────────────


def test_a_closed_log_that_lost_its_end_stops(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    sizes = build(folder, LARGE)
    mended(folder)
    (path,) = segments(folder)
    whole = path.read_bytes()
    for size in (sizes[0], sizes[-2], sizes[-1] - 600, sizes[-1] - 1):
        path.write_bytes(whole[:size])
        for writable in (True, False):
            with pytest.raises(LogCorrupted, match="was closed behind record 14"):
                open_log(folder, writable=writable)
        assert path.stat().st_size == size, "nothing was changed"
        assert "was closed" in inspect(folder)[-1].problem


def test_a_closed_log_that_grew_stops(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    build(folder, SMALL)
    mended(folder)
    mark = (folder / CLOSED).read_bytes()
    (path,) = segments(folder)
    whole = path.read_bytes()
    path.write_bytes(whole + b"garbage")
    with pytest.raises(LogCorrupted, match="7 bytes follow"):
        open_log(folder)
    path.write_bytes(whole)
    log = open_log(folder)
    log.append([b"more"])
    log.sync()
    assert not (folder / CLOSED).exists(), "it goes before the first append"
    log.shut()
    (folder / CLOSED).write_bytes(mark)
    with pytest.raises(LogCorrupted, match="was closed behind record 10"):
        open_log(folder)


def test_reading_keeps_the_closing_mark(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    build(folder, SMALL)
    mended(folder)
    mark = (folder / CLOSED).read_bytes()
    assert contents(folder) == flat(SMALL)
    assert mended(folder) == (flat(SMALL), 0)
    assert (folder / CLOSED).read_bytes() == mark
