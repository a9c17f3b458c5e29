"""What `import motet` offers."""

from __future__ import annotations

import inspect

import motet
from motet import errors


def test_every_error_is_at_the_top_level() -> None:
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.MotetError):
            assert getattr(motet, name) is kind
            assert name in motet.__all__


def test_what_is_promised_exists() -> None:
    assert len(motet.__all__) == len(set(motet.__all__))
    for name in motet.__all__:
        assert hasattr(motet, name)
