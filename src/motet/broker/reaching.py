"""How far back subscriptions may reach."""

from __future__ import annotations

from collections.abc import Mapping

from motet.protocol.session.messages import Request, SubscribeRequest


def too_far_back(
    client: str, request: Request, known: Mapping[str, int], without_log: str
) -> tuple[str, str]:
    """Why a subscription cannot reach into the past, if it wants to: an error, and its text.
    `known` is how far its client has read; `without_log` names a broker that keeps no past."""
    if not isinstance(request, SubscribeRequest) or not request.since:
        return ("", "")
    if without_log:
        text = f"{without_log} does not deliver exactly once, and keeps no past"
        return ("NotOffered", text)
    for pubend, tick in known.items():
        since = request.since.get(pubend, request.since.get("", tick))
        if since < tick:
            text = (
                f"{client} has read {pubend} up to tick {tick}, so a subscription cannot "
                "reach back there: make those that do before anything is read, or take a "
                "client of its own for it"
            )
            return ("TooLate", text)
    return ("", "")
