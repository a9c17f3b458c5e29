"""What a rejoin takes: one message for each entry, in few frames."""

from __future__ import annotations

from motet.protocol.link.machine import CONTROL_CHUNK
from motet_labs.bench.journal import EFFORTS, rejoin
from motet_labs.figures import Size


def test_a_rejoin_tells_each_entry_once() -> None:
    count = EFFORTS[Size.SHORT].rejoined
    control, frames, took, size = rejoin(count)
    assert all(figure.counts for figure in (control, frames, took, size))
    clients, advertisements, declarations = 2, 1, 2
    assert control.value == count + clients + advertisements + declarations
    assert frames.value < 20 + 2 * count / CONTROL_CHUNK
