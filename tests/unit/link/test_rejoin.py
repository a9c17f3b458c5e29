"""What a rejoin takes: one message for each entry, in few frames."""

from __future__ import annotations

from motet.bench.rejoin import SHORT, measure
from motet.protocol.link.machine import CONTROL_CHUNK


def test_a_rejoin_tells_each_entry_once() -> None:
    control, frames, took, size = measure(short=True)
    assert all(figure.counts for figure in (control, frames, took, size))
    clients, advertisements, declarations = 2, 1, 2
    assert control.value == SHORT + clients + advertisements + declarations
    assert frames.value < 20 + 2 * SHORT / CONTROL_CHUNK
