"""The interface of a filter index, and the choice of the engine behind it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final, Protocol

from motet.errors import MisuseError
from motet.matching.python_index import PythonIndex, surely_covers
from motet.model.filters import Filter
from motet.model.values import Value

_NATIVE_IS_BUILT: Final = find_spec("motet.matching._native") is not None

ENGINE: Final = os.environ.get("MOTET_MATCHER") or ("native" if _NATIVE_IS_BUILT else "python")
"""The engine that `create_index()` uses: that of MOTET_MATCHER, else the fastest available."""


class FilterIndex(Protocol):
    """Filters under keys, each of which leads to a hop.

    Keys are ints from 0 to 2**63 - 1; a hop is the number of a bit. Events are exact dicts with
    str keys. Values of attributes that no filter constrains are ignored; any other value that is
    invalid (None, bytes, a naive datetime) raises TypeError, an int beyond 64 bits
    OverflowError.
    """

    def add(self, key: int, filter: Filter, hop: int) -> None:
        """Add a filter. Raises ValueError, and changes nothing, if the key is present."""

    def remove(self, key: int, /) -> None:
        """Remove the filter of a key; raises KeyError if there is none."""

    def __len__(self) -> int: ...

    def __contains__(self, key: object) -> bool: ...

    def match(self, attributes: Mapping[str, Value], /) -> list[int]:
        """The keys of the filters that match, ascending."""

    def hops(self, attributes: Mapping[str, Value], /) -> int:
        """The hops of the filters that match, as a mask of bits."""

    def hops_encoded(self, body: bytes | memoryview, /) -> int | None:
        """Like `hops`, for the encoded body of an event; None if no event can have that body."""

    def overlapping(self, filter: Filter, /) -> list[int]:
        """The keys of the filters that share a matching event with this one, ascending."""

    def overlapping_hops(self, filter: Filter, /) -> int:
        """The hops of the filters that overlap with this one, as a mask of bits."""

    def covering(self, filter: Filter, /) -> list[int]:
        """The keys of the filters that match whatever this one matches, ascending.

        A filter is left out if unions make the question too expensive.
        """

    def covered(self, filter: Filter, /) -> list[int]:
        """The keys of the filters that match nothing but what this one matches, ascending."""


def create_index(engine: str | None = None) -> FilterIndex:
    """A new, empty index: "native" (C), "python", or None for `ENGINE`."""
    match engine or ENGINE:
        case "python":
            return PythonIndex()
        case "native":
            if not _NATIVE_IS_BUILT:
                raise MisuseError(
                    "the native matcher is not built; run `python setup.py build_ext --inplace` "
                    "with a C compiler at hand, or unset MOTET_MATCHER"
                )
            from motet.matching._native import NativeIndex

            return NativeIndex(surely_covers)
        case unknown:
            raise MisuseError(f"no matcher is called {unknown!r}; use 'native' or 'python'")
