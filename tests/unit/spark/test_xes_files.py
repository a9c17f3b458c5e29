"""XES, read strictly: every event with all its attributes, or the line that is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from motet.errors import MisuseError
from motet.spark.replay import kinds
from motet.spark.replay.xes_files import rows_of

TIME_US = 1_772_355_600_000_000  # 2026-03-01T09:00:00Z
EVENT = '<event><string key="concept:name" value="a"/>{}</event>'
LOG = """<?xml version="1.0" encoding="UTF-8"?>
<log>
<global scope="event"><string key="concept:name" value="none"/></global>
<string key="creator" value="somebody"/>
<trace>
<string key="concept:name" value="c1"/>
<event><string key="concept:name" value="first"/></event>
<event><string key="concept:name" value="second"/></event>
</trace>
<trace><string key="concept:name" value="c2"/></trace>
</log>
"""


def read(path: Path, data: str | bytes) -> list[tuple[int, dict[str, Any]]]:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return [
        (line, {name: valued.value for name, valued in row.items()}) for line, row in rows_of(path)
    ]


def event(path: Path, *attributes: str) -> dict[str, Any]:
    ((_, row),) = read(path, "<log>" + EVENT.format("".join(attributes)) + "</log>")
    return row


def test_events_have_their_lines_and_what_their_traces_have(tmp_path: Path) -> None:
    wanted = [
        (7, {"concept:name": "first", "case:concept:name": "c1"}),
        (8, {"concept:name": "second", "case:concept:name": "c1"}),
    ]
    assert read(tmp_path / "log.xes", LOG) == wanted
    assert read(tmp_path / "log.xes.gz", gzip.compress(LOG.encode())) == wanted
    wide = LOG.replace("UTF-8", "UTF-16").encode("utf-16")
    assert read(tmp_path / "log.xes", wide) == wanted
    spaced = LOG.replace("<", "<x:").replace("<x:/", "</x:").replace("<x:?", "<?")
    spaced = spaced.replace("<x:log", '<x:log xmlns:x="http://www.xes-standard.org/"')
    assert read(tmp_path / "log.xes", spaced) == wanted
    assert read(tmp_path / "log.xes", "<log/>") == []


def test_a_trace_may_be_named_after_its_events(tmp_path: Path) -> None:
    log = f'<log><trace>{EVENT.format("")}<string key="n" value="c"/></trace></log>'
    assert [row for _, row in read(tmp_path / "log.xes", log)] == [
        {"concept:name": "a", "case:n": "c"}
    ]


def test_a_log_truncated_anywhere_is_reported(tmp_path: Path) -> None:
    for end in range(1, len(LOG.rstrip())):
        with pytest.raises(MisuseError, match=r"log\.xes is truncated: it ends in line \d+"):
            read(tmp_path / "log.xes", LOG[:end])


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ('<string key="x" value=" 007 &amp; "/>', " 007 & "),
        ('<id key="x" value="7"/>', "7"),
        ('<int key="x" value=" -9223372036854775808"/>', -(2**63)),
        ('<float key="x" value="1.5E2"/>', 150.0),
        ('<float key="x" value="-INF"/>', float("-inf")),
        ('<boolean key="x" value="false"/>', False),
        ('<boolean key="x" value="1"/>', True),
        ('<date key="x" value="2026-03-01T10:00:00.000+01:00"/>', TIME_US),
        ('<date key="x" value="2026-03-01T09:00:00"/>', TIME_US),
    ],
)
def test_values(attribute: str, value: Any, tmp_path: Path) -> None:
    found = event(tmp_path / "log.xes", attribute)["x"]
    assert found == value
    assert type(found) is type(value)


def test_nested_attributes_are_columns_and_lists_are_text(tmp_path: Path) -> None:
    row = event(
        tmp_path / "log.xes",
        '<string key="cost" value="7 EUR"><int key="total" value="7"/>'
        '<string key="by" value="Ann"><boolean key="sure" value="true"/></string></string>',
        '<list key="parts"><int key="size" value="2"/><values><string key="part" value="a"/>'
        '<int key="part" value="2"/></values></list>',
        '<container key="box"><date key="at" value="2026-03-01T09:00:00Z"/>'
        '<list key="inner"><values><int key="n" value="1"/></values></list></container>',
    )
    del row["concept:name"]
    assert json.loads(row.pop("parts")) == [
        {"key": "part", "value": "a"},
        {"key": "part", "value": 2},
    ]
    assert json.loads(row.pop("box")) == [
        {"key": "at", "value": "2026-03-01T09:00:00Z"},
        {"key": "inner", "attributes": [{"key": "n", "value": 1}]},
    ]
    assert row == {
        "cost": "7 EUR",
        "cost:total": 7,
        "cost:by": "Ann",
        "cost:by:sure": True,
        "parts:size": 2,
    }


def test_times_tell_whether_they_have_a_zone_and_were_cut(tmp_path: Path) -> None:
    path = tmp_path / "log.xes"
    dates = '<date key="a" value="2026-03-01T09:00:00.1234567Z"/><date key="b" value="2026-03-01"/>'
    path.write_text(f"<log>{EVENT.format(dates)}</log>")
    ((_, row),) = rows_of(path)
    assert (row["a"].kind, row["a"].is_cut) == (kinds.ZONED, True)
    assert (row["b"].kind, row["b"].is_cut) == (kinds.LOCAL, False)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "is empty"),
        ("<logs></logs>", "line 1: the root is <logs>, but XES has the root <log>"),
        ("<log>\n<trace></event></log>", r"line 2, column 10: invalid XML \(mismatched tag\)"),
        ("<log>\n<string key='\xfc' value=''/></log>".encode("latin1"), r"line 2, .*encoding"),
        ("<?xml version='1.0' encoding='klingon'?><log/>", "klingon; save the file as UTF-8"),
        ("<!DOCTYPE log SYSTEM 'x'><log>&y;</log>", "XES has no <!DOCTYPE>"),
        ("<log>\n<traces><trace/></traces></log>", "line 2: <traces> in <log> is not allowed"),
        ("<log><trace><trace/></trace></log>", "<trace> in <trace> is not allowed"),
        ("<log xmlns:o='other'><o:trace/></log>", "<trace> in <log> is not allowed"),
        ("<log><trace>\nlost</trace></log>", "line 2: text between elements, 'lost'"),
        ("<log><event><string value='a'/></event></log>", "a <string> has no key"),
        ("<log><event><string key='a'/></event></log>", "<string> 'a' has no value"),
        (
            "<log><event><int key='a' value='1'/>\n<int key='a' value='1'/></event></log>",
            "line 2: the attribute 'a' occurs twice",
        ),
        (
            "<log><trace><int key='a' value='1'/>\n<event><int key='case:a' value='1'/></event>"
            "</trace></log>",
            "line 2: an event and its trace both have an attribute 'case:a'",
        ),
        ("<log><event>" + "<list key='a'>" * 99 + "</event></log>", "nested deeper than 64"),
    ],
)
def test_an_error_in_a_log_file_is_told_with_its_line(
    data: str | bytes, said: str, tmp_path: Path
) -> None:
    with pytest.raises(MisuseError, match=said) as told:
        read(tmp_path / "log.xes", data)
    assert str(tmp_path / "log.xes") in str(told.value)


@pytest.mark.parametrize(
    "attribute",
    [
        '<int key="x" value="1.5"/>',
        '<int key="x" value="9223372036854775808"/>',
        '<float key="x" value="1,5"/>',
        '<float key="x" value="1e999"/>',
        '<boolean key="x" value="yes"/>',
        '<date key="x" value="01.03.2026"/>',
        '<date key="x" value=""/>',
        '<list key="l"><values><int key="x" value="?"/></values></list>',
    ],
)
def test_values_of_the_wrong_kind_are_misuse(attribute: str, tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match=r"line 1: .* of 'x' is not a valid \w+ value"):
        event(tmp_path / "log.xes", attribute)
