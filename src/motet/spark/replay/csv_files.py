"""CSV, read strictly: what is not written as RFC 4180 has it is refused with its line.

Spark's reader passes over much: what follows a quote that is never closed becomes one value, rows
that are too long lose their end, files are read by the header of the first, and wrong bytes become
question marks. So tasks read with this instead, a file each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from motet.errors import MisuseError
from motet.spark.replay.files import opened

Row = dict[str, str | None]

SEPARATORS: Final = {",": "','", ";": "';'", "\t": "tab", "|": "'|'"}
LONGEST_ROW_CHARS: Final = 1 << 22
"""An event has at most a quarter of it: something else is wrong."""
_BOM: Final = b"\xef\xbb\xbf"
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")
_BARE_CR: Final = "a line break of another kind (CR alone): let lines end with LF or CR LF"
_QUOTED: Final = re.compile(r'"[^"]*"')


def rows_of(path: Path) -> Iterator[tuple[int, Row]]:
    """The line where it begins, and its values by column; what is empty, and not quoted, is None.
    The first is the header, with nothing in it: a file without rows has columns, too."""
    with opened(path) as file:
        records = _records(file, path)
        first = next(records, None)
        if first is None:
            raise MisuseError(f"{path} is empty: the first line has to name the columns")
        separator = _separator(first[1], path)
        field = _field(separator)
        names = _header(_split(first[1], separator, field, f"{path}, line {first[0]}"), path)
        yield first[0], dict.fromkeys(names)
        for line, record in records:
            values = _split(record, separator, field, f"{path}, line {line}")
            if len(values) != len(names):
                raise MisuseError(
                    f"{path}, line {line}: {len(values)} fields, and the header has {len(names)}; "
                    f"a field with a {SEPARATORS[separator]} or a line break in it must be quoted"
                )
            yield line, dict(zip(names, values, strict=True))


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    while data := file.readline(LONGEST_ROW_CHARS + 1):
        number += 1
        where = f"{path}, line {number}"
        if number == 1:
            data = data.removeprefix(_BOM)
            if data.startswith(_WIDE):
                raise MisuseError(f"{path} is written in UTF-16: save it as UTF-8")
        if len(data) > LONGEST_ROW_CHARS:
            raise MisuseError(f"{where} has more than {LONGEST_ROW_CHARS:,} bytes: is it CSV?")
        try:
            text = data.decode()
        except UnicodeDecodeError as problem:
            raise MisuseError(
                f"{where}: byte {problem.start + 1} is not UTF-8; convert the file: "
                f"iconv -f latin1 -t utf-8"
            ) from None
        if "\0" in text:
            raise MisuseError(f"{where} has a NUL in it: save the file as UTF-8")
        yield number, text


def _records(file: BinaryIO, path: Path) -> Iterator[tuple[int, str]]:
    """Lines, and several where a line ends within quotes. Empty ones are no rows."""
    held: list[str] = []
    begun = quotes = chars = 0
    for number, line in _lines(file, path):
        begun = begun if held else number
        held.append(line)
        quotes += line.count('"')
        chars += len(line)
        if quotes % 2:
            if chars > LONGEST_ROW_CHARS:
                break
            continue
        record = "".join(held).removesuffix("\n").removesuffix("\r")
        held, quotes, chars = [], 0, 0
        if record:
            yield begun, record
    if held:
        raise MisuseError(f"{path}, line {begun}: a quote is opened there and never closed")


def _separator(header: str, path: Path) -> str:
    """A wrong guess would put values into wrong columns: what could be two things is refused."""
    bare = _QUOTED.sub("", header)
    if "\r" in bare:
        raise MisuseError(f"{path}, line 1: {_BARE_CR}")
    found = [each for each in SEPARATORS if each in bare]
    if len(found) > 1:
        named = " or by ".join(SEPARATORS[each] for each in found)
        raise MisuseError(
            f"{path}, line 1: columns could be separated by {named}; quote names that have one in "
            f'them, like "cost; total"'
        )
    return found[0] if found else ","


def _field(separator: str) -> re.Pattern[str]:
    by = re.escape(separator)
    return re.compile(rf'(?:"([^"]*(?:""[^"]*)*)"|([^{by}"\r\n]*))({by}|\Z)')


def _split(record: str, separator: str, field: re.Pattern[str], where: str) -> list[str | None]:
    if '"' not in record and "\r" not in record:
        return [value or None for value in record.split(separator)]
    values: list[str | None] = []
    at, ended = 0, False
    while not ended:
        found = field.match(record, at)
        if found is None:
            raise MisuseError(f"{where}, field {len(values) + 1}: {_why(record, at)}")
        quoted, plain, end = found.groups()
        values.append(quoted.replace('""', '"') if quoted is not None else plain or None)
        at, ended = found.end(), not end
    return values


def _why(record: str, at: int) -> str:
    if record.startswith('"', at):
        return "something stands behind the closing quote; quotes within quotes are doubled"
    quote, end = record.find('"', at), record.find("\r", at)
    if end >= 0 and (quote < 0 or end < quote):
        return _BARE_CR
    return "a quote stands in the middle; a field with quotes in it is quoted, and they are doubled"


def _header(names: list[str | None], path: Path) -> list[str]:
    found = [name or f"_c{at}" for at, name in enumerate(names)]
    doubled = next((name for name in found if found.count(name) > 1), None)
    if doubled is not None:
        raise MisuseError(f"{path}, line 1: two columns are called {doubled!r}; rename one")
    return found
