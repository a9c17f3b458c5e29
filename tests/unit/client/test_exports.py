"""What `import motet` offers."""

from __future__ import annotations

import inspect

import pytest

import motet
import motet.client
import motet.client.logs
import motet.client.sync
import motet.cloudevents
from motet import errors

MODULES = [motet, motet.client, motet.client.sync, motet.client.logs, motet.cloudevents]


def test_the_top_level_has_few_names() -> None:
    assert 10 <= len(motet.__all__) <= 20


@pytest.mark.parametrize("module", MODULES)
def test_every_exported_name_exists(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert len(names) == len(set(names))
    for name in names:
        assert hasattr(module, name)


def test_errors_of_waiting_are_timeout_errors() -> None:
    for kind in (errors.NotEffective, errors.OutcomeUnknown, errors.NoAnswer, errors.TimedOut):
        assert issubclass(kind, TimeoutError)
        assert issubclass(kind, errors.UnavailableError)
    problem = errors.NotEffective("subscribe", ("B2",), 3.0)
    assert str(problem) == "subscribe was not effective within 3 s; brokers not reached: B2"
    assert (problem.errno, problem.missing) == (None, ("B2",))


def test_errors_are_all_in_one_module() -> None:
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.MotetError):
            assert kind.__module__ == "motet.errors"


def test_handles_show_an_application_only_its_own_methods() -> None:
    """Those for other modules of the client begin with an underscore."""
    common = {"active", "ended", "error", "kind"}
    assert public(motet.client.Advertisement) == common | {"unadvertise"}
    own = {"buffered", "cursors", "get_nowait", "unsubscribe"}
    assert public(motet.client.Subscription) == common | own | {"ack"}  # for `event.ack()`


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}
