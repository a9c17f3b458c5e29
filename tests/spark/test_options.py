"""Options as users write them, and the errors that they get."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from motet.errors import MisuseError
from motet.model import Filter
from motet.spark.columns import Columns
from motet.spark.options import EARLIEST, LogPosition, mark_of, offset_at, options_in, vector_at

URL = {"brokers": "motet://a:1, motet://b:2"}


def test_options_are_read() -> None:
    found = options_in({**URL, "STARTINGPOSITION": "Earliest", "maxeventspertrigger": "7"})
    assert found.brokers == ("motet://a:1", "motet://b:2")
    assert (found.starting, found.max_events) == (EARLIEST, 7)
    later = options_in({**URL, "startingPosition": "1970-01-01T00:00:01"})
    assert later.starting == LogPosition("tick", tick=1_000_000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingPosition", "{1"),
        ("startingPosition", '{"A": 0}'),
        ("startingPosition", '{"A": "earliest"}'),
        ("startingPosition", "soon"),
        ("startingPosition", "transaction:"),
        ("cursor", ""),
        ("cursor", "x" * 1000),
        ("timeout", "-1"),
        ("timeout", "nan"),
        ("misfits", "drop"),
        ("maxBytesPerTrigger", "1 MB"),
    ],
)
def test_nonsense_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(MisuseError, match=name):
        options_in({**URL, name: value})


def test_a_column_is_asked_for_once() -> None:
    with pytest.raises(MisuseError, match="schema declares n as not null"):
        Columns(StructType().add("n", LongType(), nullable=False))
    schema = StructType().add("n", LongType()).add("n", StringType())
    with pytest.raises(MisuseError, match="the column n is listed 2 times"):
        Columns(schema)


def test_offsets_have_one_spelling_and_know_their_filter() -> None:
    mark = mark_of(Filter.parse("n > 1"))
    assert mark == mark_of(Filter.parse(" n  > 1 "))
    assert mark != mark_of(Filter.parse("n > 2")) != mark_of(None)
    offset = offset_at({"b": 2, "a": 1}, mark)
    assert str(offset) == f"{{'filter': '{mark}', 'p': {{'a': 1, 'b': 2}}, 'v': 1}}"
    assert vector_at(offset, mark) == {"a": 1, "b": 2}
    with pytest.raises(MisuseError, match="the filter of this query"):
        vector_at(offset, "")
    with pytest.raises(MisuseError, match="version 2"):
        vector_at({**offset, "v": 2}, mark)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("sys.modules['pyspark'] = None", "pip install 'motet[spark]'"),
        ("os.environ.pop('JAVA_HOME', ''); os.environ['PATH'] = '/'", "openjdk-17-jre-headless"),
        ("os.environ['JAVA_HOME'] = '/nowhere'", "JAVA_HOME is /nowhere"),
    ],
)
def test_a_missing_dependency_is_named_with_the_command_that_installs_it(
    missing: str, words: str
) -> None:
    program = f"""
import os, sys
{missing}
import motet, motet.spark
try:
    motet.spark.session()
except motet.MotetError as problem:
    print(problem)
"""
    command = (sys.executable, "-c", program)
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert words in said
