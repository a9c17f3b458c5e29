"""Services: the event services that can be ordered, each behind the same four calls.

Lives here
    base          `Service`: subscribe, unsubscribe, publish, notify; open, close, interrupted
    schemes       `service_of`: the service that a URL names
    memory        `memory://name`, in one process, for tests and examples
    reconnection  a service behind a connection, which is made again when it breaks
    nats          NATS core, with nats-py
    jetstream     JetStream, with nats-py
    mqtt          MQTT 5 at QoS 1, with aiomqtt
    redis         Redis pub/sub, with the sockets of redis-py
    rabbitmq      RabbitMQ, a topic exchange, with aio-pika
    motet         Motet itself: the topic is an attribute

May import: `motet.errors`, `motet.client` and `motet.model` for Motet's own adapter,
`motet.runtime` for backoff and addresses, and the library of the service, which is imported when
the service is used.

Must never: know of numbers, timestamps or sequencers; keep a message once `notify` has it; publish
a message again whose publication may have been reported as failed.

Invariants owned here
    - `subscribe` has returned: every message that is published from then on comes, unless the
      service loses it.
    - The service was away: all subscriptions are in force again before `interrupted` is called.
    - A lossless service gives each acknowledged message to each subscriber, whatever breaks.

Test only this room: `pytest tests/conformance/test_services.py`
"""

from motet.ordering.services.base import Interrupted, Notify, Service
from motet.ordering.services.schemes import service_of

__all__ = ["Interrupted", "Notify", "Service", "service_of"]
