"""The schema of a topology file, checked at the edge with pydantic."""

from __future__ import annotations

import tomllib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from motet.errors import TopologyError
from motet.protocol.config import LIVENESS, OUTBOX_BOUND
from motet.protocol.sequencing.messages import CAUSAL

_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""`Topology` itself checks the upper limits."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Overlay(_Strict):
    name: str = "overlay"
    covering: bool | Literal["retract"] = False
    lease_s: _Seconds = 30.0
    heartbeat_s: _Seconds = 2.0
    durability: str = "fsync"
    outbox_bound: int = OUTBOX_BOUND
    root: str = ""
    most_clients: int = 0
    authorise: str = ""
    retention: dict[str, int | float | str] = {}


class _Liveness(_Strict):
    """See `Liveness`; `Topology` itself checks the limits."""

    gap_s: float = LIVENESS.gap_s
    nack_repeat_s: float = LIVENESS.nack_repeat_s
    nack_repeat_most_s: float = LIVENESS.nack_repeat_most_s
    ack_expected_s: float = LIVENESS.ack_expected_s
    delay_s: float = LIVENESS.delay_s
    ack_delay_s: float = LIVENESS.ack_delay_s
    silence_s: float = LIVENESS.silence_s
    gone_s: float = LIVENESS.gone_s


class _Place(_Strict):
    listen: str
    links: list[str] = []
    mates: dict[str, str] = {}
    retention: dict[str, int | float | str] = {}
    most_clients: int | None = None


class _Hosted(_Strict):
    path: Annotated[str, Field(alias="class")]
    home: str
    brokers: list[str] = []
    options: dict[str, Any] = {}


class _Ordering(_Strict):
    listen: str | None = None
    mode: str = CAUSAL
    lease_s: _Seconds = 10.0
    keep_s: _Seconds = 60.0


class File(_Strict):
    overlay: _Overlay = _Overlay()
    brokers: dict[str, _Place]
    liveness: _Liveness = _Liveness()
    hosted: dict[str, _Hosted] = {}
    ordering: bool | _Ordering = False


def _explain(problem: ValidationError) -> str:
    parts = []
    for error in problem.errors(include_url=False):
        key = ".".join(str(part) for part in error["loc"]) or "the file"
        if error["type"] == "extra_forbidden":
            parts.append(f"{key}: is not known here; remove it or correct its spelling")
        elif error["type"] == "missing":
            parts.append(f"{key}: is missing; add it")
        else:
            parts.append(f"{key}: {error['msg']}, not {error['input']!r}")
    return "; ".join(parts)


def read(text: str, source: str) -> File:
    """Raises a `TopologyError` that names the source, the key and what to do."""
    try:
        return File.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as problem:
        raise TopologyError(f"{source}: is not TOML: {problem}") from None
    except ValidationError as problem:
        raise TopologyError(f"{source}: {_explain(problem)}") from None
