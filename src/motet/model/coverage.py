"""Covering: whether a filter is forwarded to a neighbour that has a wider one."""

from __future__ import annotations

from typing import Final, Literal

RETRACT: Final = "retract"
"""A wider filter also takes back those that it covers, as in the papers. Moving a wide subscription
is then dear every time: all that it covered is sent when it leaves, and taken back when it
arrives."""

Covering = bool | Literal["retract"]


def shown_covering(covering: Covering) -> str:
    return repr(covering) if covering == RETRACT else ("off", "on")[covering]
