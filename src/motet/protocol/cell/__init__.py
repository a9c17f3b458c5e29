"""Cells: the frames between processes of one cell, and between those of neighbouring cells.

Lives here: the frames of stream links and of the mirror, and when a member's word is believed.
May import: `motet.model`, `motet.errors`, frames of streams, the record of a link.
Must never: carry control between cells (heads do that, on their link); look at a clock.
Owns: the silence and the acknowledgements of a member count only for subscriptions that it
certainly knew when it spoke; its events always count.
Test this room: `pytest tests/unit/cell`
"""
