"""What Motet's ordering needs of an event service: four calls, and what it says by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Protocol
from urllib.parse import SplitResult, parse_qs, urlsplit

from motet.errors import MisuseError, NotOffered

HEADER_BYTES = 256
"""Of a message, beside its body and the text of its header, at the most."""
HEADER = "motet-order"
"""The name of the one header that services carry for Motet, if they carry headers."""


class Notify(Protocol):
    def __call__(self, topic: str, body: bytes, header: str = "", /) -> None:
        """Takes the topic and the body of a message, and its header. Called on the event loop; must
        not raise."""


Interrupted = Callable[[str], None]
"""Takes the reason. Messages may be lost until it is called, and are none any more afterwards."""

OPEN_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 30.0
"""How long a call waits for the service, reconnecting included, before it raises."""


class Service(ABC):
    """An event service with topics, for one client on one event loop.

    A service may double, delay and reorder messages. One that is `lossless` delivers every message
    whose `publish` has returned to every topic that was subscribed to before; others may lose some.

    Calls raise errors of `motet.errors`: `MisuseError` if the service refuses, `UnavailableError`
    if it did not answer. A publication that raised may have happened nevertheless.
    """

    name: str
    """Where it is, for texts: `NATS at 127.0.0.1:4222`."""
    lossless: bool = False
    most_bytes: int = 1 << 20
    """The largest body that `publish` takes, and header, if there is one."""
    most_header_bytes: int = 0
    """The longest header that a message may have; 0: the service has no headers."""

    @abstractmethod
    async def open(self, notify: Notify, interrupted: Interrupted) -> None:
        """Connect, or raise within `OPEN_TIMEOUT_S`. A connection that breaks later is made again,
        with all subscriptions; when they are effective, `interrupted` is called."""

    @abstractmethod
    async def close(self) -> None:
        """End the connection. Later calls raise `ClosedError`. May be called twice."""

    @abstractmethod
    async def subscribe(self, topic: str) -> None:
        """Return when every message that is published from now on will come."""

    async def subscribe_pattern(self, pattern: str) -> None:
        """As `subscribe`, for all topics that match; messages come with their own topic."""
        self.check_pattern(pattern)

    def check_pattern(self, pattern: str) -> None:
        """Raise if the service has no patterns, or this is none."""
        raise NotOffered(
            f"cannot subscribe to {pattern!r}: {self.name} has no patterns; name each topic"
        )

    @abstractmethod
    async def unsubscribe(self, topic: str) -> None:
        """Messages that are under way may still come."""

    def matches(self, pattern: str, topic: str) -> bool:
        """Whether a subscription to the pattern gets messages of the topic."""
        del pattern, topic
        return False

    @abstractmethod
    async def publish(self, topic: str, body: bytes, header: str = "") -> None:
        """Return when the service has the message. Messages of one client that are handed over in
        one iteration of the loop leave together, in their sequence. It raises `Disconnected` at
        once while the service is away; call it again then, at most a double comes of it."""

    def check_body(self, body: bytes, header: str = "") -> None:
        header_bytes = len(header.encode())
        size = len(body) + (HEADER_BYTES + header_bytes if header else 0)
        if size > self.most_bytes:
            raise MisuseError(
                f"{self.name} takes bodies of at most {self.most_bytes} bytes, not {size}"
            )
        if not header:
            return
        if not self.most_header_bytes:
            raise NotOffered(f"{self.name} has no headers; connect without headers=True")
        if header_bytes > self.most_header_bytes:
            raise MisuseError(
                f"{self.name} takes headers of at most {self.most_header_bytes} bytes, and "
                f"this timestamp has {header_bytes}; connect without headers=True"
            )


class Url:
    """The parts of a service's URL; unknown options are refused."""

    def __init__(self, text: str, port: int = 0, options: Iterable[str] = ()) -> None:
        self.text = text
        parts = _split(text)
        self.scheme = parts.scheme
        try:
            self.host, self.port = parts.hostname or "", parts.port or port
        except ValueError as error:
            raise MisuseError(f"{text!r} is not the URL of a service: {error}") from None
        if not self.host:
            example = f"{self.scheme}://127.0.0.1:{port}" if port else f"{self.scheme}://name"
            raise MisuseError(f"{text!r} names no host; write for example {example}")
        self.user, self.password = parts.username, parts.password
        self.path = parts.path.strip("/")
        self._options = {name: values[-1] for name, values in parse_qs(parts.query, True).items()}
        known = sorted(options)
        for name in self._options:
            if name not in known:
                may = f"it may be {', '.join(known)}" if known else "there are none"
                raise MisuseError(f"{text!r} has the unknown option {name!r}; {may}")

    @property
    def server(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def option(self, name: str) -> str | None:
        return self._options.get(name)

    def number(self, name: str, default: float) -> float:
        text = self._options.get(name)
        if text is None:
            return default
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise MisuseError(f"option {name} of {self.text!r} must be a number, 0 or more")
        return number


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:
        raise MisuseError(f"{text!r} is not the URL of a service: {error}") from None


class Topics:
    """How topics are named at a service, as far as its wildcards forbid names."""

    def __init__(self, service: str, wildcards: Iterable[str], most_bytes: int) -> None:
        self._service = service
        self._wildcards = tuple(wildcards)
        self._most_bytes = most_bytes

    def check(self, topic: str) -> None:
        if not topic or len(topic.encode()) > self._most_bytes:
            raise MisuseError(
                f"topic {topic[:40]!r} must have 1 to {self._most_bytes} bytes for {self._service}"
            )
        for char in self._wildcards:
            if char in topic:
                raise MisuseError(f"topic {topic!r} contains {char!r}, which {self._service} takes")


def words_match(
    pattern: str, topic: str, *, separator: str, one: str, any_number: str = "", rest: str = ""
) -> bool:
    """Whether a topic of words fits a pattern, in which these words stand for one word, for any
    number of them, and for one or more at the end."""
    wanted, words = pattern.split(separator), topic.split(separator)

    def fits(at: int, to: int) -> bool:
        while at < len(wanted):
            word = wanted[at]
            if any_number and word == any_number:
                return any(fits(at + 1, other) for other in range(to, len(words) + 1))
            if rest and word == rest:
                return len(words) > to
            if to == len(words) or word not in (one, words[to]):
                return False
            at, to = at + 1, to + 1
        return to == len(words)

    return fits(0, 0)
