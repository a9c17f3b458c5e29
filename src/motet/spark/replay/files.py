"""Which files a log has, and how they are opened: nothing is passed over that may hold events."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast
from urllib.parse import unquote

from motet.errors import MisuseError

FORMATS: Final = {
    "parquet": (".parquet",),
    "csv": (".csv", ".csv.gz"),
    "xes": (".xes", ".xes.gz"),
}
KNOWN: Final = ", ".join(end for ends in FORMATS.values() for end in ends)
UNSEEN: Final = ("_", ".")
"""Names that begin like this are notes, not data: so does Spark have it."""
_TABLES: Final = {
    "_delta_log": "a Delta table",
    "_spark_metadata": "what a stream of Spark has written",
    ".hoodie": "a Hudi table",
}
"""Folders with files that do not count any more, and what says so."""
_PATTERN: Final = frozenset("*?[]{}")
_MAGIC: Final = {
    b"PK\x03\x04": "is a zip archive: unpack it",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd: unpack it",
    b"BZh": "is compressed with bzip2: unpack it",
    b"PAR1": "is Parquet: let its name end with .parquet",
}
_GZIP: Final = b"\x1f\x8b"


def files_in(path: Path) -> tuple[str, list[Path]]:
    """The format of a log, and its files."""
    if not path.exists():
        hint = "; name a file or a folder: patterns are not expanded here"
        raise MisuseError(f"there is no {path}" + (hint if _PATTERN & set(str(path)) else ""))
    if not (path.is_file() or path.is_dir()):
        raise MisuseError(f"{path} is neither a file nor a folder")
    if path.is_file() and path.name.startswith(UNSEEN):
        raise MisuseError(f"{path}: Spark passes over names that begin like this; rename it")
    from motet.spark.archive.manifest import is_archive

    archive = next(filter(is_archive, path.absolute().parents), None)
    if archive is not None:
        raise MisuseError(f"{path} is a part of the archive {archive}: name that")
    files = [path] if path.is_file() else sorted(_below(path))
    if path.is_dir():
        files = [each for each in files if not each.name.startswith(UNSEEN)]
    found = {format_of(each) for each in files}
    if not found - {""}:
        raise MisuseError(f"{path} has nothing to replay; logs are files of one format, {KNOWN}")
    if "" in found:
        stray = next(each for each in files if not format_of(each))
        raise MisuseError(
            f"{stray} is no log of a format that is known ({KNOWN}): take it away, or let its name "
            f"begin with _ if it is none"
        )
    if len(found) > 1:
        raise MisuseError(f"{path} has several formats ({', '.join(sorted(found))}); name one file")
    (format,) = found
    for each in files:
        with opened(each, plain=True):
            pass  # readable at all? It is better to know now than in a task
    return format, files


def format_of(path: Path) -> str:
    name = path.name.lower()
    return next((format for format, ends in FORMATS.items() if name.endswith(ends)), "")


def _below(path: Path) -> Iterator[Path]:
    def fail(problem: OSError) -> None:
        raise MisuseError(f"{problem.filename} cannot be read: {problem.strerror}")

    from motet.spark.archive.manifest import is_archive

    for folder, folders, names in os.walk(path, onerror=fail):
        if folder != str(path) and is_archive(Path(folder)):
            raise MisuseError(f"{folder} is an archive: name it alone")
        for name in folders:
            if name in _TABLES:
                raise MisuseError(
                    f"{folder} is {_TABLES[name]}, in which not every file counts: read it with "
                    f"Spark, and write what it has into a folder of its own"
                )
            if Path(folder, name).is_symlink() and not name.startswith(UNSEEN):
                raise MisuseError(f"{Path(folder, name)} is a link to a folder: name that folder")
        folders[:] = [name for name in folders if not name.startswith(UNSEEN)]
        yield from (Path(folder, name) for name in names)


def by_folder(path: Path, root: Path) -> dict[str, str | None]:
    """What the names of folders say (`day=monday/log.csv`), as Spark writes and reads them."""
    said: dict[str, str | None] = {}
    if path == root:
        return said
    for part in path.relative_to(root).parts[:-1]:
        name, equals, value = part.partition("=")
        if name and equals:
            said[unquote(name)] = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
    return said


def name_within(uri: str, root: str) -> str:
    """What the file of a row is called: below the folder of its log, or if that is a file, alone.
    Of an archive, rows have pubends instead."""
    if not uri.startswith("file:"):
        return uri
    path = "/" + unquote(uri.removeprefix("file:")).lstrip("/")
    below = os.path.relpath(path, os.path.abspath(root))
    return os.path.basename(path) if below == "." or below.startswith("..") else below


@contextmanager
def opened(path: Path, *, plain: bool = False) -> Iterator[BinaryIO]:
    """To be read from its beginning, unpacked unless it is wanted `plain`. Whatever is wrong with
    the file while it is open is told with its name."""
    packed = path.name.lower().endswith(".gz")
    try:
        with path.open("rb") as file:
            if plain:
                yield file
                return
            _check_magic(path, file, packed)
            if packed:
                with gzip.open(file) as unpacked:
                    yield cast(BinaryIO, unpacked)
            else:
                yield file
    except EOFError:
        raise MisuseError(f"{path} is cut off: its end is missing") from None
    except (zlib.error, gzip.BadGzipFile) as problem:
        raise MisuseError(f"{path} is damaged, and cannot be unpacked: {problem}") from None
    except OSError as problem:
        raise MisuseError(f"{path} cannot be read: {problem.strerror or problem}") from None


def is_open(path: Path) -> bool:
    """Whether the last line has no end. What is packed knows itself where it ends."""
    with opened(path, plain=True) as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n" and not path.name.lower().endswith(".gz")


def _check_magic(path: Path, file: BinaryIO, packed: bool) -> None:
    begin = file.read(4)
    file.seek(0)
    if not begin:
        raise MisuseError(f"{path} is empty: not even a beginning of a log is there")
    if not packed and begin.startswith(_GZIP):
        raise MisuseError(f"{path} is compressed: let its name end with .gz")
    for magic, problem in _MAGIC.items():
        if begin.startswith(magic):
            raise MisuseError(f"{path} {problem}")
