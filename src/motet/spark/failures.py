"""Errors that have come through Spark, in few words: ours as they were, others by their cause.

Spark wraps an error in all that it was doing then. And what a batch of a stream raises must be
short: Spark takes its text apart with a pattern that overflows the stack on long ones.
"""

from __future__ import annotations

import functools
import re
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from motet import errors
from motet.errors import MisuseError, MotetError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OURS: Final = re.compile(r"motet\.(?:errors|spark\.failures)\.(\w+): (.*)")
_FILE: Final = re.compile(r"\[FAILED_READ_FILE[.\w]*\] .*?reading file (\S+?)\.\s")
_TRACEBACK: Final = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n|[ \t]*\n)+(?P<cause>\S.*)"
)
"""Of Python: its lines are indented, but for the last one, which says what was wrong."""
_JAVA: Final = re.compile(
    r"(?:^|: )(?P<kind>(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)): (?P<cause>.+)", re.MULTILINE
)
"""Of Java: one wraps another, and the last one that is told of was the first."""
_CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE: Final = re.compile(r" SQLSTATE: \w+")
VAGUE: Final = ".ClassNotFoundException"
"""Whoever caught it says more."""
FIRST_LINES: Final = 2
LONGEST_CHARS: Final = 500
DEBUG: Final = "--debug shows all that Spark says"

HINTS: Final = (
    ("No space left on device", "the disk is full: where Spark writes, or where its scratch is"),
    (
        "JAVA_GATEWAY_EXITED",
        "Java did not start, and has said above why; Spark needs Java 17 or newer",
    ),
    (
        "Address already in use",
        "Spark found no free port: see spark.driver.port and spark.port.maxRetries",
    ),
    ("OutOfMemoryError", "Spark needs more memory: SPARK_DRIVER_MEMORY=4g"),
)
"""What to do about errors that machines have; the first that fits."""


class SparkFailed(MotetError):
    """Something went wrong in Spark that Motet knows nothing of; `hint` says what may help."""

    def __init__(self, problem: str, hint: str = DEBUG) -> None:
        super().__init__(problem)
        self.hint = hint


def is_foreign(problem: BaseException) -> bool:
    return type(problem).__module__.split(".")[0] in ("pyspark", "py4j")


def brief(problem: BaseException) -> MotetError:
    """The same error, to be told to somebody."""
    text = str(problem).strip()
    ours, file = _OURS.search(text), _FILE.search(text)
    if ours is None and file is not None:
        path = re.sub("^file:/+", "/", unquote(file[1]))
        return MisuseError(
            f"{path} cannot be read to its end: it is damaged, or somebody has taken it away. Put "
            f"it back from a copy"
        )
    if ours is None or ours[1] == SparkFailed.__name__:
        told = ours[2] if ours is not None else cause_in(text) or type(problem).__name__
        hint = next((hint for words, hint in HINTS if words in text), DEBUG)
        return SparkFailed(told[:LONGEST_CHARS], hint)
    return _again(getattr(errors, ours[1], MotetError), ours[2][:LONGEST_CHARS])


def _again(kind: Any, text: str) -> MotetError:
    """Of the same kind, if a text is all that it needs: there are hints for kinds."""
    try:
        made = kind(text)
    except TypeError:
        made = None
    if isinstance(made, MotetError):
        return made
    is_misuse = isinstance(kind, type) and issubclass(kind, MisuseError)
    return (MisuseError if is_misuse else MotetError)(text)


def cause_in(text: str) -> str:
    """What a text of Spark's says was wrong, without all that was going on then."""
    python = [*_TRACEBACK.finditer(text)]
    if python:
        return python[-1]["cause"].strip()
    java = [each for each in _JAVA.finditer(text) if not each["kind"].endswith(VAGUE)]
    if java:
        kind = java[-1]["kind"].rpartition(".")[2]
        return f"{kind}: {_tidy(java[-1]['cause'].strip())}"
    lines = [line.strip() for line in text.splitlines()]
    if lines and _CLASS.match(lines[0]):
        return _tidy(lines[0])  # then comes a plan, or where it was called
    return " ".join(lines[:FIRST_LINES])


def _tidy(line: str) -> str:
    return _STATE.sub("", _CLASS.sub("", line)).rstrip("; ")


def hush(spark: SparkSession, level: str = "OFF") -> None:
    """What fails is raised, and told once: Spark would tell it again, at length and in several
    places. `level` is for what its JVM has to say."""
    from pyspark.logger import PySparkLogger

    spark.sparkContext.setLogLevel(level)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None  # if the JVM ends first


def end_of_jvm() -> MotetError | None:
    """What to say if Spark's JVM has ended, by itself or by somebody else's hand: then whatever is
    asked of it fails, in many ways."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    process = getattr(getattr(context, "_gateway", None), "proc", None)
    status = process.poll() if process is not None else None
    if status is None:
        return None
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    hint = "if nobody killed it, the machine has too little memory" if status < 0 else DEBUG
    return SparkFailed(f"Spark's JVM has ended {how}", hint)


def briefly(work: Callable[..., None]) -> Callable[..., None]:
    """What a stream calls for each of its batches."""

    @functools.wraps(work)
    def done(*arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as problem:
            if is_foreign(problem):
                raise brief(problem) from None
            raise

    return done
