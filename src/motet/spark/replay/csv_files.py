"""CSV, read strictly: anything that violates RFC 4180 is refused with its line number.

Spark's reader is too lenient: an unclosed quote makes the rest one value, rows that are too long
lose their end, all files are read by the header of the first, and invalid bytes become question
marks. So tasks use this reader instead, one file each.
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
"""An event has at most a quarter of this, so a longer row is not CSV."""
_BOM: Final = b"\xef\xbb\xbf"
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")
_BARE_CR: Final = "a bare CR is not a line break; end lines with LF or CR LF"
_QUOTED: Final = re.compile(r'"[^"]*"')


def rows_of(path: Path) -> Iterator[tuple[int, Row]]:
    """Each row's first line number, and its values by column; empty unquoted values are None. The
    header comes first, with all values None, because a file without rows has columns, too."""
    with opened(path) as file:
        records = _records(file, path)
        first = next(records, None)
        if first is None:
            raise MisuseError(f"{path} is empty; its first line must name the columns")
        separator = _separator(first[1], path)
        field = _field(separator)
        names = _header(_split(first[1], separator, field, f"{path}, line {first[0]}"), path)
        yield first[0], dict.fromkeys(names)
        for line, record in records:
            values = _split(record, separator, field, f"{path}, line {line}")
            if len(values) != len(names):
                raise MisuseError(
                    f"{path}, line {line}: {len(values)} fields, but the header has {len(names)}; "
                    f"quote fields that contain a {SEPARATORS[separator]} or a line break"
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
                raise MisuseError(f"{path} is encoded in UTF-16; save it as UTF-8")
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
            raise MisuseError(f"{where} has a NUL character; save the file as UTF-8")
        yield number, text


def _records(file: BinaryIO, path: Path) -> Iterator[tuple[int, str]]:
    """Rows, which span several lines if a line ends within quotes. Empty lines are skipped."""
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
        raise MisuseError(f"{path}, line {begun}: a quote is opened here but never closed")


def _separator(header: str, path: Path) -> str:
    """A wrong guess would put values into wrong columns, so an ambiguous header is refused."""
    bare = _QUOTED.sub("", header)
    if "\r" in bare:
        raise MisuseError(f"{path}, line 1: {_BARE_CR}")
    found = [each for each in SEPARATORS if each in bare]
    if len(found) > 1:
        named = " or by ".join(SEPARATORS[each] for each in found)
        raise MisuseError(
            f"{path}, line 1: columns could be separated by {named}; quote names that contain "
            f'one, like "cost; total"'
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
        return "text after the closing quote; write quotes within the value twice"
    quote, end = record.find('"', at), record.find("\r", at)
    if end >= 0 and (quote < 0 or end < quote):
        return _BARE_CR
    return "a quote in an unquoted field; quote the field, and write the quotes in it twice"


def _header(names: list[str | None], path: Path) -> list[str]:
    found = [name or f"_c{at}" for at, name in enumerate(names)]
    doubled = next((name for name in found if found.count(name) > 1), None)
    if doubled is not None:
        raise MisuseError(f"{path}, line 1: two columns are named {doubled!r}; rename one")
    return found
