"""Events, filters and names: the frozen values that all other rooms use.

What lives here
    values        values of attributes; the four families and their order
    sets          the set of values of one attribute; clauses, and the algebra of `and` and `or`
    language      the filter language: tokens, parser, printer
    filters       `Filter`, a union of clauses; its form on the wire; `overlap` and `covers`; the
                  same language in Python: `attr("step") > 1`
    events        `Event`, and its body as msgpack
    cloudevents   events as CloudEvents, both ways
    ids           `Hop`, `OpId`, epochs of sessions, names of attributes, ticks of events
    limits        the maximum sizes of all of these

May import: the standard library, msgspec, `motet.errors`.

Must never: do I/O, read a clock, draw randomness, evaluate or compile text from a peer, or keep
state between calls.

Invariants owned here
    - Values of different families never compare; bool is not a number; NaN equals nothing; ints
      and floats compare exactly.
    - Every set has one canonical form; no clause of a filter is unsatisfiable; clauses are sorted
      and distinct. `Filter.parse(str(f)) == f` and `Filter.from_wire(f.to_wire()) == f`.
    - `overlap` and `covers` are exact over all int64, float64, text and microseconds.
    - Hostile text raises only `FilterError`, hostile bodies only `FrameError` and `EventError`,
      in time linear in their size.

Test only this room: `pytest tests/unit/model`
"""

from motet.model.cloudevents import from_cloudevent, to_cloudevent
from motet.model.events import Event, check_attributes, decode_attributes, decode_body, encode_event
from motet.model.filters import (
    EVERYTHING,
    NOTHING,
    Attribute,
    Filter,
    as_filter,
    attr,
    covers,
    overlap,
)
from motet.model.ids import Hop, OpId
from motet.model.values import Attributes, Value

__all__ = [
    "EVERYTHING",
    "NOTHING",
    "Attribute",
    "Attributes",
    "Event",
    "Filter",
    "Hop",
    "OpId",
    "Value",
    "as_filter",
    "attr",
    "check_attributes",
    "covers",
    "decode_attributes",
    "decode_body",
    "encode_event",
    "from_cloudevent",
    "overlap",
    "to_cloudevent",
]
