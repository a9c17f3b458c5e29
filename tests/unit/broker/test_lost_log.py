"""A broker whose log of events is gone, but not its journal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from motet.broker.service import _lost_with
from motet.errors import LogCorrupted
from motet.runtime.clock import SteadyClock


def test_an_accepted_loss_is_in_the_log_of_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = SimpleNamespace(hosted="B1.7", next_tick=5)
    durable = SimpleNamespace(routing=SimpleNamespace(state=state))
    core: Any = SimpleNamespace(durable=durable, config=SimpleNamespace(name="B1"))
    folder = tmp_path / "pubend"
    with pytest.raises(LogCorrupted, match=f"--name B1 --data {tmp_path} --accept-loss`"):
        _lost_with(folder, core, SteadyClock(), accept_loss=False)
    assert caplog.records == []
    assert _lost_with(folder, core, SteadyClock(), accept_loss=True) >= 5
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "is gone: all events of B1.7 up to now are lost, and so are all named" in record.message
