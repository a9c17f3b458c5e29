"""Size limits. Brokers enforce them on input from clients; tools may quote them."""

from __future__ import annotations

from typing import Final

# ── clients ──────────────────────────────────────────────────────────────────────────────

MAX_CLIENT_ID_CHARS: Final = 128
MAX_CREDENTIALS_BYTES: Final = 4096
MAX_BROKER_CHARS: Final = 64
"""Of the name of a broker."""
MAX_KEEP_S: Final = 366 * 86_400.0
"""How long a durable session may be kept while no process is connected."""
LAST_SEQUENCE: Final = 2**53
"""The last publication of a session."""

# ── connections ──────────────────────────────────────────────────────────────────────────

MIN_HEARTBEAT_S: Final = 0.01
MAX_HEARTBEAT_S: Final = 3600.0

# ── events ───────────────────────────────────────────────────────────────────────────────

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
MAX_NAME_CHARS: Final = 128
MAX_ATTRIBUTES: Final = 256
MAX_EVENT_BYTES: Final = 1 << 20
"""Bound on the encoded body: attributes and payload together."""

# ── filters ──────────────────────────────────────────────────────────────────────────────

MAX_FILTER_CHARS: Final = 64 * 1024
MAX_FILTER_DEPTH: Final = 64
MAX_CLAUSES: Final = 64
"""Clauses of one filter, after `and` was distributed over `or`."""
MAX_PREDICATES: Final = 1024
"""Predicates of one filter: as written, and again as printed after distribution."""
MAX_IN_LIST: Final = 1024
MAX_INTERVALS: Final = 1024
"""Intervals of one filter over all its clauses: what an index must store for it."""
MAX_COVER_STEPS: Final = 20_000
"""Interval operations one `covers` on unions may cost before it gives up."""
