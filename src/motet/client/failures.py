"""From the name of an error on the wire to the error itself."""

from __future__ import annotations

from motet import errors
from motet.client.happenings import Failure


def error_of(failure: Failure, operation: str = "", timeout_s: float = 0.0) -> errors.MotetError:
    """The exception to raise for a failure. Names we do not know are `UnavailableError`s."""
    kind = getattr(errors, failure.error, None)
    if kind is errors.NotEffective:
        return errors.NotEffective(operation, failure.missing, timeout_s)
    if kind is errors.EventsLost:  # it is told in ticks, never by name
        return errors.UnavailableError(failure.text)
    if isinstance(kind, type) and issubclass(kind, errors.MotetError):
        return kind(failure.text)
    return errors.UnavailableError(f"{failure.error}: {failure.text}")
