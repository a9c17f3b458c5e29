"""The operator's rule for clients: a function of their own, named in the topology file."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable

from motet.errors import TopologyError

log = logging.getLogger("motet.broker")

BROKEN = "its rule for clients has failed; its operator finds the reason in the broker's log"


def rule_of(name: str) -> Callable[[str, bytes], str] | None:
    """The rule named `module:function`. It is called on the broker's loop with a client's id and
    credentials, must not block, and returns why the client is refused, or nothing. A rule that
    fails lets nobody in."""
    if not name:
        return None
    module, _, function = name.partition(":")
    try:
        rule = getattr(importlib.import_module(module), function)
    except Exception as problem:
        raise TopologyError(
            f"overlay.authorise: {name!r} cannot be imported: {problem}; install it, or add its "
            "folder to PYTHONPATH"
        ) from None
    if not callable(rule):
        raise TopologyError(f"overlay.authorise: {name!r} is not a function")

    def objection(client: str, credentials: bytes) -> str:
        try:
            why = rule(client, credentials)
        except Exception:
            log.exception("the rule %s has failed for %r", name, client)
            return BROKEN
        if not why:
            return ""
        if isinstance(why, str):
            return why
        log.error("the rule %s returned %r for %r; return text, or None", name, why, client)
        return BROKEN

    return objection
