"""The files of a log, and how to open them: no file that may hold events is skipped."""

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

FORMATS: Final = {"parquet": (".parquet",), "csv": (".csv", ".csv.gz"), "xes": (".xes", ".xes.gz")}
KNOWN: Final = ", ".join(end for ends in FORMATS.values() for end in ends)
UNSEEN: Final = ("_", ".")
"""Spark, too, takes files with these prefixes for metadata."""
_TABLES: Final = {
    "_delta_log": "a Delta table",
    "_spark_metadata": "the output of a Spark stream",
    ".hoodie": "a Hudi table",
}
"""Folders of tables in which some files are obsolete, by the metadata that says which."""
_PATTERN: Final = frozenset("*?[]{}")
_MAGIC: Final = {
    b"PK\x03\x04": "is a zip archive; unpack it",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd; unpack it",
    b"BZh": "is compressed with bzip2; unpack it",
    b"PAR1": "is Parquet; rename it to end with .parquet",
}
_GZIP: Final = b"\x1f\x8b"


def files_in(path: Path) -> tuple[str, list[Path]]:
    """The format of a log, and its files."""
    if not path.exists():
        hint = "; patterns are not expanded: name a file or a folder"
        raise MisuseError(f"{path} does not exist" + (hint if _PATTERN & set(str(path)) else ""))
    if not (path.is_file() or path.is_dir()):
        raise MisuseError(f"{path} is neither a file nor a folder")
    if path.is_file() and path.name.startswith(UNSEEN):
        raise MisuseError(f"{path}: Spark ignores files whose names begin with _ or .; rename it")
    from motet.spark.archive.manifest import is_archive

    archive = next(filter(is_archive, path.absolute().parents), None)
    if archive is not None:
        raise MisuseError(f"{path} is part of the archive {archive}; name the archive instead")
    files = [path] if path.is_file() else sorted(_below(path))
    if path.is_dir():
        files = [each for each in files if not each.name.startswith(UNSEEN)]
    found = {format_of(each) for each in files}
    if not found - {""}:
        raise MisuseError(f"{path} has no logs to replay; logs are files of one format: {KNOWN}")
    if "" in found:
        stray = next(each for each in files if not format_of(each))
        raise MisuseError(
            f"the format of {stray} is unknown (known: {KNOWN}); remove the file, or rename it to "
            f"begin with _ if it is not a log"
        )
    if len(found) > 1:
        raise MisuseError(f"{path} has several formats ({', '.join(sorted(found))}); name one file")
    (format,) = found
    for each in files:
        with opened(each, plain=True):
            pass  # fail now if it is unreadable, rather than in a task
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
            raise MisuseError(f"{folder} is an archive; replay it on its own")
        for name in folders:
            if name in _TABLES:
                raise MisuseError(
                    f"{folder} is {_TABLES[name]}, in which some files are obsolete; read it with "
                    f"Spark, write the rows to another folder, and replay that folder"
                )
            if Path(folder, name).is_symlink() and not name.startswith(UNSEEN):
                raise MisuseError(f"{Path(folder, name)} is a link to a folder; name that folder")
        folders[:] = [name for name in folders if not name.startswith(UNSEEN)]
        yield from (Path(folder, name) for name in names)


def by_folder(path: Path, root: Path) -> dict[str, str | None]:
    """Values in folder names (`day=monday/log.csv`), as Spark writes and reads them."""
    said: dict[str, str | None] = {}
    if path == root:
        return said
    for part in path.relative_to(root).parts[:-1]:
        name, equals, value = part.partition("=")
        if name and equals:
            said[unquote(name)] = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
    return said


def name_within(uri: str, root: str) -> str:
    """The name of a row's file, relative to the log's folder; if the log is a file, its bare name.
    Rows of an archive have pubends instead."""
    if not uri.startswith("file:"):
        return uri
    path = "/" + unquote(uri.removeprefix("file:")).lstrip("/")
    below = os.path.relpath(path, os.path.abspath(root))
    return os.path.basename(path) if below == "." or below.startswith("..") else below


@contextmanager
def opened(path: Path, *, plain: bool = False) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed unless `plain`. Errors while it is open are reported
    with its name."""
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
        raise MisuseError(f"{path} is truncated: its end is missing") from None
    except (zlib.error, gzip.BadGzipFile) as problem:
        raise MisuseError(f"{path} is damaged and cannot be decompressed: {problem}") from None
    except OSError as problem:
        raise MisuseError(f"{path} cannot be read: {problem.strerror or problem}") from None


def is_open(path: Path) -> bool:
    """Whether the last line has no line break. Compressed files know their own end."""
    with opened(path, plain=True) as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n" and not path.name.lower().endswith(".gz")


def _check_magic(path: Path, file: BinaryIO, packed: bool) -> None:
    begin = file.read(4)
    file.seek(0)
    if not begin:
        raise MisuseError(f"{path} is empty")
    if not packed and begin.startswith(_GZIP):
        raise MisuseError(f"{path} is compressed with gzip; rename it to end with .gz")
    for magic, problem in _MAGIC.items():
        if begin.startswith(magic):
            raise MisuseError(f"{path} {problem}")
