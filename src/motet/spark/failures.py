"""Errors that came through Spark, shortened: Motet's own unchanged, others reduced to their cause.

Spark wraps an error in everything it was doing. And an error raised in a batch of a stream must be
short: Spark parses its text with a pattern that overflows the stack on long ones.
"""

from __future__ import annotations

import functools
import re
import signal
import sys
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

from motet import errors
from motet.errors import MisuseError, MotetError

_OURS: Final = re.compile(r"motet\.(?:errors|spark\.failures)\.(\w+): (.*)")
_FILE: Final = re.compile(r"\[FAILED_READ_FILE[.\w]*\] .*?reading file (\S+?)\.\s")
_TRACEBACK: Final = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n|[ \t]*\n)+(?P<cause>\S.*)"
)
"""A Python traceback: all lines are indented except the last one, which has the error."""
_JAVA: Final = re.compile(
    r"(?:^|: )(?P<kind>(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)): (?P<cause>.+)", re.MULTILINE
)
"""Java exceptions wrap one another; the last one in the text is the root cause."""
_CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE: Final = re.compile(r" SQLSTATE: \w+")
VAGUE: Final = ".ClassNotFoundException"
"""The exception that wraps it says more."""
FIRST_LINES: Final = 2
LONGEST_CHARS: Final = 500
DEBUG: Final = "--debug shows all that Spark says"

HINTS: Final = (
    ("No space left on device", "the disk of the output or temporary folder is full"),
    (
        "JAVA_GATEWAY_EXITED",
        "Java did not start; its output above says why. Spark needs Java 17 or newer",
    ),
    (
        "Address already in use",
        "Spark found no free port: see spark.driver.port and spark.port.maxRetries",
    ),
    ("OutOfMemoryError", "Spark needs more memory: SPARK_DRIVER_MEMORY=4g"),
)
"""Advice for errors of the machine; the first match wins."""


class SparkFailed(MotetError):
    """An error in Spark that Motet has no class for; `hint` suggests a remedy."""

    def __init__(self, problem: str, hint: str = DEBUG) -> None:
        super().__init__(problem)
        self.hint = hint


def is_foreign(problem: BaseException) -> bool:
    return type(problem).__module__.split(".")[0] in ("pyspark", "py4j")


def brief(problem: BaseException) -> MotetError:
    """The same error in a form to show to users."""
    text = str(problem).strip()
    ours, file = _OURS.search(text), _FILE.search(text)
    if ours is None and file is not None:
        path = re.sub("^file:/+", "/", unquote(file[1]))
        return MisuseError(
            f"{path} cannot be read completely: it is damaged or was removed; restore it from a "
            "copy"
        )
    if ours is None or ours[1] == SparkFailed.__name__:
        told = ours[2] if ours is not None else cause_in(text) or type(problem).__name__
        hint = next((hint for words, hint in HINTS if words in text), DEBUG)
        return SparkFailed(told[:LONGEST_CHARS], hint)
    return _again(getattr(errors, ours[1], MotetError), ours[2][:LONGEST_CHARS])


def _again(kind: Any, text: str) -> MotetError:
    """An error of the same class if its constructor takes one text, because hints go by class."""
    try:
        made = kind(text)
    except TypeError:
        made = None
    if isinstance(made, MotetError):
        return made
    is_misuse = isinstance(kind, type) and issubclass(kind, MisuseError)
    return (MisuseError if is_misuse else MotetError)(text)


def cause_in(text: str) -> str:
    """The cause that a text of Spark names, without its context."""
    python = [*_TRACEBACK.finditer(text)]
    if python:
        return python[-1]["cause"].strip()
    java = [each for each in _JAVA.finditer(text) if not each["kind"].endswith(VAGUE)]
    if java:
        kind = java[-1]["kind"].rpartition(".")[2]
        return f"{kind}: {_tidy(java[-1]['cause'].strip())}"
    lines = [line.strip() for line in text.splitlines()]
    if lines and _CLASS.match(lines[0]):
        return _tidy(lines[0])  # what follows is a plan or a call site
    return " ".join(lines[:FIRST_LINES])


def _tidy(line: str) -> str:
    return _STATE.sub("", _CLASS.sub("", line)).rstrip("; ")


def end_of_jvm() -> MotetError | None:
    """The error to report if Spark's JVM has ended, on its own or killed: every call to it then
    fails, in many different ways."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    process = getattr(getattr(context, "_gateway", None), "proc", None)
    status = process.poll() if process is not None else None
    if status is None:
        return None
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    hint = "if no user killed it, the machine ran out of memory" if status < 0 else DEBUG
    return SparkFailed(f"Spark's JVM ended {how}", hint)


def briefly(work: Callable[..., None]) -> Callable[..., None]:
    """Wrap a function that a stream calls for each batch, so that Spark's errors are shortened."""

    @functools.wraps(work)
    def done(*arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as problem:
            if is_foreign(problem):
                raise brief(problem) from None
            raise

    return done
