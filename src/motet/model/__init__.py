"""Events, filters and names: the frozen values everything else is about.

What lives here
    values        what attributes hold; the four families and their order
    sets          what one attribute may be, as a set; meeting, subtracting, containing
    clauses       conjunctions as boxes, and the algebra of `and` and `or`
    filters       `Filter`, a union of clauses
    relations     `overlap` and `covers`
    tokens, parser, predicates, printer   the filter language, in and out
    expressions   the same language in Python: `attr("step") > 1`
    wire, travel  filters as msgpack, and how msgspec finds them
    body, events  `Event`, and its body as msgpack
    cloudevents   events as CloudEvents, both ways
    ids           `Hop`, `OpId`
    limits        how large all of these may be
    ticks         when events were published, as numbers

May import: the standard library, msgspec, `motet.errors`.

Must never: do I/O, read a clock, draw randomness, evaluate or compile what a peer sent, or keep
state between calls.

Invariants owned here
    - Values of different families never compare; bool is no number; NaN equals nothing; ints and
      floats compare exactly.
    - Every set has one spelling; no clause of a filter is unsatisfiable; clauses are sorted and
      distinct. `Filter.parse(str(f)) == f` and `Filter.from_wire(f.to_wire()) == f`.
    - `overlap` and `covers` are exact over all int64, float64, text and microseconds.
    - Hostile text raises only `FilterError`, hostile bodies only `FrameError` and `EventError`,
      in time linear in their size.

Test only this room: `pytest tests/unit/model`
"""

from motet.model.body import check_attributes, decode_attributes, decode_body, encode_event
from motet.model.cloudevents import from_cloudevent, to_cloudevent
from motet.model.events import Event
from motet.model.expressions import Attribute, attr
from motet.model.filters import EVERYTHING, NOTHING, Filter, as_filter
from motet.model.ids import Hop, OpId
from motet.model.relations import covers, overlap
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
