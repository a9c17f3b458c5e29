"""Choice of the service that a URL names."""

from __future__ import annotations

from collections.abc import Callable

from motet.errors import MisuseError, NotOffered
from motet.ordering.services.base import Service


def _memory(url: str) -> Service:
    from motet.ordering.services.memory import MemoryService

    return MemoryService(url)


def _nats(url: str) -> Service:
    from motet.ordering.services.nats import nats_core

    return nats_core(url)


def _jetstream(url: str) -> Service:
    from motet.ordering.services.jetstream import jetstream

    return jetstream(url)


def _mqtt(url: str) -> Service:
    from motet.ordering.services.mqtt import mqtt

    return mqtt(url)


def _redis(url: str) -> Service:
    from motet.ordering.services.redis import redis

    return redis(url)


def _rabbitmq(url: str) -> Service:
    from motet.ordering.services.rabbitmq import rabbitmq

    return rabbitmq(url)


def _motet(url: str) -> Service:
    from motet.ordering.services.motet import MotetService

    return MotetService(url)


def _needs(library: str, extra: str, make: Callable[[str], Service]) -> Callable[[str], Service]:
    """Adapters are imported when they are used, because each needs a library of its own."""

    def tried(url: str) -> Service:
        try:
            return make(url)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0].startswith("motet"):
                raise
            raise NotOffered(
                f"{url.partition(':')[0]}:// needs {library}; pip install 'motet[{extra}]'"
            ) from error

    return tried


_SERVICES: dict[str, Callable[[str], Service]] = {
    "memory": _memory,
    "nats": _needs("nats-py", "nats", _nats),
    "jetstream": _needs("nats-py", "nats", _jetstream),
    "mqtt": _needs("aiomqtt", "mqtt", _mqtt),
    "redis": _needs("redis-py", "redis", _redis),
    "amqp": _needs("aio-pika", "rabbitmq", _rabbitmq),
    "motet": _motet,
    "inproc": _motet,  # a broker in this event loop
}


def service_of(url: str) -> Service:
    """The service that the URL names. It is not connected yet."""
    scheme, separator, _ = url.partition("://")
    make = _SERVICES.get(scheme)
    if not separator or make is None:
        known = ", ".join(f"{each}://" for each in _SERVICES)
        raise MisuseError(f"{url!r} is not the URL of a service; it must begin with one of {known}")
    return make(url)
