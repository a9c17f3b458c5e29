"""Motet: transactional, content-based publish/subscribe for Python.

    async with motet.connect("motet://127.0.0.1:7701", client_id="alice") as client:
        await client.advertise("process = 'p1'")
        async with client.subscribe("step > 1") as subscription:
            await client.publish({"process": "p1", "step": 2}, payload=b"...")
            async for event in subscription:
                print(event["step"], event.payload)

Without `await`: `motet.connect_sync`. A whole overlay in one process: `motet.local(brokers=3)`.
Errors are in `motet.errors`, all other classes of the client in `motet.client`,
`motet.client.sync` and `motet.client.logs`, CloudEvents in `motet.cloudevents`. All times are
seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from motet import errors
from motet.client import (
    Client,
    Invitation,
    Outcome,
    Plan,
    Subscription,
    Transaction,
    connect,
    local,
)
from motet.client.logs import open_log, open_log_sync, read, read_sync
from motet.client.sync import connect_sync, local_sync
from motet.errors import MotetError
from motet.model import Event, Filter, attr

if TYPE_CHECKING:
    from motet import ordering as ordering
    from motet.broker.overlay.topology import Topology

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Event",
    "Filter",
    "Invitation",
    "MotetError",
    "Outcome",
    "Plan",
    "Subscription",
    "Topology",
    "Transaction",
    "attr",
    "connect",
    "connect_sync",
    "errors",
    "local",
    "local_sync",
    "open_log",
    "open_log_sync",
    "read",
    "read_sync",
]


def __getattr__(name: str) -> Any:
    """Import what brokers are made of, and ordering, only if it is used: most programs only
    connect."""
    if name == "ordering":
        return import_module("motet.ordering")
    if name == "Topology":
        from motet.broker.overlay.topology import Topology

        return Topology
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
