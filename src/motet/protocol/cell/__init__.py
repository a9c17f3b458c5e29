"""Cells: what members of one virtual broker say to each other, and to members of the next.

Lives here: the frames of stream links and of the mirror, and when a member's word is believed.
May import: `motet.model`, `motet.errors`, frames of streams, the record of a link.
Must never: carry control between cells (heads do that, on their link); look at a clock.
Owns: the silence and the acknowledgements of a member count only for subscriptions that it is
sure to have known when it spoke; its events always count.
Test this room: `pytest tests/unit/cell`
"""
