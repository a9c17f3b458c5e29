"""What a broker makes of the requests of readers, whatever they ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.broker.driver.side_requests import ReadableLog, _check, read
from motet.errors import FrameError, MisuseError, VersionError
from motet.model import Event
from motet.model.ids import LAST_TICK, NO_LIMIT
from motet.protocol.reading.messages import MAX_COLUMNS, ReadRequest, Wanted
from motet.runtime.codec import decode, encode
from motet.runtime.pubend import PubendLog
from motet.runtime.transport import MAX_FRAME_BYTES
from tests.unit.pubend.ground import opened, settle, shut

TICK = Wanted("tick")


def request(
    since: int = 0,
    upto: int = 0,
    columns: tuple[Wanted, ...] = (TICK,),
    kinds: tuple[str, ...] = ("event",),
    most_rows: int = NO_LIMIT,
) -> ReadRequest:
    return ReadRequest(2, 1, "", since, upto, columns, None, kinds, most_rows)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (request(since=-1), "since is a tick"),
        (request(upto=LAST_TICK + 1), "upto is a tick"),
        (request(most_rows=0), "most_rows must be at least 1"),
        (request(columns=()), "ask for 1 to 256 columns"),
        (request(columns=tuple(Wanted(f"a{n}", f"a{n}") for n in range(MAX_COLUMNS + 1))), "257"),
        (request(columns=(Wanted("nothing"),)), "'nothing' is no column of a stream"),
        (request(columns=(Wanted("x", "x", "int128"),)), "'int128' is no kind of value"),
        (request(columns=(Wanted("x", "1x"),)), "cannot name an attribute"),
        (request(kinds=()), "kinds of records"),
        (request(kinds=("event", "secret")), "kinds of records"),
        (request(kinds=("start",)), "must include 'event'"),
    ],
)
def test_senseless_requests_are_refused(asked: ReadRequest, text: str) -> None:
    with pytest.raises(MisuseError, match=text):
        _check(asked)


def test_a_frame_of_another_version_is_distinguished_from_a_malformed_one() -> None:
    with pytest.raises(VersionError):
        decode(b"\x93\xa5logs?\x09\xa1x")
    with pytest.raises(FrameError):
        decode(b"\x93\xa5logs?\x02\xa1x")


def large(folder: Path, sizes: list[int], *, seals: bool) -> PubendLog:
    pubend = opened(folder, segment_bytes=1 << 30)
    for number, size in enumerate(sizes, 1):
        body = Event({"n": number}, b"x" * size).encode()
        pubend.append_run(number, "alice", "e1", number, [body])
    pubend.roll()
    settle(pubend)
    if seals:
        assert pubend.seal_here() == 1
    return pubend


@pytest.mark.parametrize("seals", [False, True])
def test_every_answer_fits_a_frame(tmp_path: Path, seals: bool) -> None:
    """Large events and small ones, whatever lies beside each other in a block."""
    sizes = [1_000_000] * 7 + [10] * 3000 + [1_000_000] * 6
    pubend = large(tmp_path, sizes, seals=seals)
    columns = (TICK, Wanted("payload"), Wanted("attributes"), Wanted("n", "n", "int"))
    at, rows, answers = 1, 0, 0
    while at <= len(sizes):
        answer = read(ReadableLog(pubend), request(at, columns=columns))
        assert len(encode(answer)) < MAX_FRAME_BYTES
        assert (answer.since, answer.lost) == (at, False)
        assert answer.rows == answer.upto - at + 1
        at, rows, answers = answer.upto + 1, rows + answer.rows, answers + 1
    assert rows == len(sizes)
    assert answers < 10
    shut(pubend)


def test_reading_beyond_the_end_returns_no_rows(tmp_path: Path) -> None:
    pubend = large(tmp_path, [1, 2, 3], seals=False)
    answer = read(ReadableLog(pubend), request(since=9))
    assert (answer.since, answer.upto, answer.rows, answer.last_tick) == (9, 8, 0, 3)
    answer = read(ReadableLog(pubend), request(since=2, upto=99, most_rows=1))
    assert (answer.since, answer.upto, answer.rows, answer.last_tick) == (2, 2, 1, 3)
    shut(pubend)
