"""Errors that have come through Spark, in few words: ours as they were, others by first lines.

Spark wraps an error in all that it was doing then. And what a batch of a stream raises must be
short: Spark takes its text apart with a pattern that overflows the stack on long ones.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

from motet import errors
from motet.errors import MisuseError, MotetError

_OURS: Final = re.compile(r"motet\.errors\.(\w+): (.*)")
_FILE: Final = re.compile(r"\[FAILED_READ_FILE[.\w]*\] .*?reading file (\S+?)\.\s")
FIRST_LINES: Final = 2
LONGEST_CHARS: Final = 500


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
    if ours is None:
        lines = [line.strip() for line in text.splitlines()[:FIRST_LINES]]
        return MotetError((" ".join(lines) or type(problem).__name__)[:LONGEST_CHARS])
    kind = getattr(errors, ours[1], MotetError)
    is_misuse = isinstance(kind, type) and issubclass(kind, MisuseError)
    return (MisuseError if is_misuse else MotetError)(ours[2][:LONGEST_CHARS])


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
