"""A file of sites with another placement: all else stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

from motet.errors import MisuseError
from motet.placement.graph import TopicPlacement

ANY: Final = "*"
"""At the end of a name in a file: all topics that begin with it."""


def placed_text(file: Mapping[str, Any], placement: TopicPlacement, note: str = "") -> str:
    """`file` is the parsed file. Prefixes stay at their sites, for topics that are not planned; of
    the others, those are named that would live elsewhere without."""
    made = deepcopy(dict(file))
    sites: dict[str, Any] = made.get("sites", {})
    if sorted(sites) != sorted(placement.line):
        raise MisuseError(
            f"the file has the sites {', '.join(sites)}, and the placement "
            f"{', '.join(placement.line)}"
        )
    ordering = made.setdefault("ordering", {})
    elsewhere = ordering.get("elsewhere") or ordering["line"][0]
    ordering["line"] = list(placement.line)
    ordering["elsewhere"] = elsewhere
    prefixes = {
        name: site
        for site, table in sites.items()
        for name in table.get("topics", ())
        if name.endswith(ANY)
    }
    for site in placement.line:
        named = [name for name, home in prefixes.items() if home == site]
        named += [
            topic
            for topic in placement.topics_of(site)
            if _without_a_name(topic, prefixes, elsewhere) != site
        ]
        sites[site].pop("topics", None)
        if named:
            sites[site]["topics"] = named
    made["sites"] = {site: sites[site] for site in placement.line}
    head = "".join(f"# {line}\n" for line in note.splitlines())
    return head + "\n".join(_tables(made, ()))


def _without_a_name(topic: str, prefixes: Mapping[str, str], elsewhere: str) -> str:
    fitting = [name for name in prefixes if topic.startswith(name[:-1])]
    return prefixes[max(fitting, key=len)] if fitting else elsewhere


def _tables(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Plain values before tables, as TOML wants it."""
    values = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if values and path:
        yield f"[{'.'.join(map(_key, path))}]"
    for key, value in values.items():
        yield f"{_key(key)} = {_value(value)}"
    if values:
        yield ""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _tables(value, (*path, key))


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return str(value)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
