"""Which Java there is, and what columns a read may ask for, without starting Spark."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from motet.errors import MisuseError, NotOffered
from motet.spark.columns import check_schema
from motet.spark.source import MotetSource

session = import_module("motet.spark.session")  # the package has a function of that name
SCHEMA = StructType().add("n", LongType()).add("room", StringType())


def java(home: Path, note: str | None) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch()
    if note is not None:
        (home / "release").write_text(note)
    return home


@pytest.mark.parametrize(
    ("note", "release"),
    [
        ('IMPLEMENTOR="x"\nJAVA_VERSION="1.8.0_402"\n', 8),
        ('JAVA_VERSION="11.0.22"\n', 11),
        ('JAVA_VERSION="17"\n', None),
        ('JAVA_VERSION="26-ea"\n', None),
        ("nothing\n", None),
        (None, None),
    ],
)
def test_a_java_that_is_too_old_is_told_before_spark_starts(
    note: str | None, release: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java(tmp_path / "jdk", note)
    monkeypatch.setenv("JAVA_HOME", str(home))
    if release is None:
        session.require_java()
        return
    with pytest.raises(NotOffered, match=f"Java 17 or newer, but JAVA_HOME .* Java {release};"):
        session.require_java()


@pytest.mark.parametrize("columns", [(), ("n:int", "room"), ("n", "room:text")])
def test_a_schema_may_agree_with_the_columns_option(columns: tuple[str, ...]) -> None:
    check_schema(SCHEMA, columns)


@pytest.mark.parametrize(
    "columns", [("n:text", "room"), ("room", "n"), ("n",), ("n", "room", "tick")]
)
def test_a_schema_and_columns_that_differ_are_refused(columns: tuple[str, ...]) -> None:
    said = r"the schema \(n bigint, room string\) and the option columns .* omit one of them"
    with pytest.raises(MisuseError, match=said):
        check_schema(SCHEMA, columns)
    source = MotetSource({"brokers": "motet://127.0.0.1:9", "columns": ",".join(columns)})
    with pytest.raises(MisuseError, match=said):
        source.reader(SCHEMA)


def test_overwrite_is_refused_with_the_mode_to_use() -> None:
    with pytest.raises(MisuseError, match=r"append, overwrite, error, ignore.*\.mode\(.append.\)"):
        MotetSource({}).writer(SCHEMA, overwrite=True)


def test_py4j_says_nothing_once_spark_is_closed() -> None:
    """The JVM may end before py4j's last command, which py4j reports to the root logger."""
    program = """
import logging
from importlib import import_module
session = import_module("motet.spark.session")
session._close()
py4j = compile("logging.error('connection reset')", "/lib/py4j/java_gateway.py", "exec")
exec(py4j)
logging.error("something else")
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert told.stderr == "ERROR:root:something else\n"
