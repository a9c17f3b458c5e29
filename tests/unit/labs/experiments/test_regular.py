"""Slices of the regular stream on a machine that is too busy to carry an event."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from motet.errors import MotetError
from motet_labs.experiments import regular
from motet_labs.experiments.regular import ALONE, RegularStream


class StarvedSubscriber:
    """Events arrive only after so many seconds."""

    pid = 1

    def __init__(self, starved_s: float) -> None:
        self.now_s = 0.0
        self._starved_s = starved_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def ask(self, what: str) -> dict[str, Any]:
        assert what == "mark"
        self.now_s += 1e-4
        taken = int(max(0.0, self.now_s - self._starved_s) * 1000)
        return {"at_s": self.now_s, "taken": taken, "notes": []}


def _stream(monkeypatch: pytest.MonkeyPatch, starved_s: float) -> RegularStream:
    subscriber: Any = StarvedSubscriber(starved_s)
    monkeypatch.setattr(time, "sleep", subscriber.sleep)
    monkeypatch.setattr(regular, "cpu_s", lambda _pid: 0.0)
    scene: Any = SimpleNamespace(load=subscriber, brokers=[])
    return RegularStream(scene, subscriber, subscriber)


def test_slice_without_events_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _stream(monkeypatch, starved_s=5.0).alone(0.01)
    assert found.approach == ALONE
    assert found.events > 0
    assert found.seconds > 0.02


def test_stream_that_carries_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _stream(monkeypatch, starved_s=1e9)
    with pytest.raises(MotetError, match="No regular event arrived in"):
        stream.alone(0.001)
