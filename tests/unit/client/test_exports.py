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
def test_what_is_promised_exists(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert len(names) == len(set(names))
    for name in names:
        assert hasattr(module, name)


def test_whatever_waits_in_vain_is_a_timeout_for_python_too() -> None:
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
