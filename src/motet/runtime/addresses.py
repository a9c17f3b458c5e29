"""Choice of the transport that serves an address."""

from __future__ import annotations

from collections.abc import Callable

from motet.errors import AddressError
from motet.runtime.inproc import InprocTransport, name_in
from motet.runtime.tcp import SCHEME, TcpTransport, port_to_reach
from motet.runtime.transport import Farewell, Transport

_TRANSPORTS: dict[str, Callable[[Farewell | None], Transport]] = {
    "motet": TcpTransport,
    "inproc": lambda _: InprocTransport(),
}


def transport_for(address: str, farewell: Farewell | None = None) -> Transport:
    """`motet://host:port` is TCP, `inproc://name` stays in this event loop."""
    scheme, separator, _ = address.partition("://")
    make = _TRANSPORTS.get(scheme)
    if not separator or make is None:
        known = ", ".join(f"{scheme}://" for scheme in _TRANSPORTS)
        raise AddressError(f"{address!r} is not an address; it must begin with one of {known}")
    return make(farewell)


def check_address(address: str) -> None:
    """Raise `AddressError` unless one could connect to the address, as far as its text shows."""
    transport_for(address)
    if address.startswith(f"{SCHEME}://"):
        port_to_reach(address)
    else:
        name_in(address)
