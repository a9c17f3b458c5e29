"""The states of a client's session, and what leads from one to another."""

from __future__ import annotations

from typing import Literal

State = Literal["offline", "greeting", "open", "ended"]

MOVES: dict[State, dict[str, State]] = {
    "offline": {"opened": "greeting", "closed": "offline", "goodbye": "ended"},
    "greeting": {
        "Welcome": "open",
        "invited back": "offline",
        "dismissed": "ended",
        "closed": "offline",
        "goodbye": "ended",
    },
    "open": {
        "Done": "open",
        "Failed": "open",
        "Published": "open",
        "Deliver": "open",
        "Delivered": "open",
        "Invited": "open",
        "Decided": "open",
        "Over": "open",
        "HowFar": "open",
        "invited back": "offline",
        "dismissed": "ended",
        "closed": "offline",
        "goodbye": "ended",
    },
    # What is still under way when we leave is read and forgotten.
    "ended": {
        "Welcome": "ended",
        "Done": "ended",
        "Failed": "ended",
        "Published": "ended",
        "Deliver": "ended",
        "Delivered": "ended",
        "Invited": "ended",
        "Decided": "ended",
        "Over": "ended",
        "HowFar": "ended",
        "invited back": "ended",
        "dismissed": "ended",
        "closed": "ended",
        "goodbye": "ended",
    },
}
