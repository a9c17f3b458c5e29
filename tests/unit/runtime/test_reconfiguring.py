"""A driver whose overlay changes: whom it calls, what it refuses, and when it must stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from motet.broker.driver.driver import BrokerDriver
from motet.broker.driver.service import reload
from motet.broker.overlay.topology import Wiring
from motet.errors import MisuseError, StaleState
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Dialled, Reconfigured
from motet.protocol.delivery.stream import Liveness
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.messages import LinkHello
from motet.protocol.room import Objection
from motet.protocol.session.messages import Farewell
from tests.unit.runtime.fakes import FakeConnection, FakeCore, FakeTransport
from tests.waiting import PATIENCE_S


class Running:
    """A driver with a core that does nothing, calling the neighbours of its wiring."""

    def __init__(self, **dial: str) -> None:
        self.core = FakeCore()
        self.transport = FakeTransport()
        self.wiring = Wiring("fake://here", dial)
        self.driver = BrokerDriver(self.core, self.wiring, transports=lambda _: self.transport)

    async def __aenter__(self) -> Running:
        await self.driver.start()
        await self.calls(len(self.wiring.dial))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.driver.stop()

    async def calls(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.transport.dialled) < count:
                await asyncio.sleep(0)

    def reconfigure(self, **dial: str) -> None:
        config = replace(self.core.config, neighbours=tuple(dial))
        self.driver.reconfigure(config, Wiring("fake://here", dial))

    @property
    def dialled(self) -> list[str]:
        return [given.neighbour for given in self.core.inputs if isinstance(given, Dialled)]


async def test_a_new_neighbour_is_called_and_the_core_hears_of_it() -> None:
    async with Running(B="fake://b") as running:
        running.reconfigure(B="fake://b", C="fake://c")
        await running.calls(2)
        assert running.dialled == ["B", "C"]
        assert running.core.inputs[1] == Reconfigured(("B", "C"))
        assert not running.transport.dialled[0].closings, "who stays is not disturbed"


async def test_a_removed_neighbour_is_called_no_more() -> None:
    async with Running(B="fake://b") as running:
        running.reconfigure()
        assert running.transport.dialled[0].farewell.text == "called elsewhere from now on"
        running.reconfigure(C="fake://c")
        await running.calls(2)
        assert running.dialled == ["B", "C"]


async def test_a_changed_address_is_dialled_again() -> None:
    async with Running(B="fake://b") as running:
        running.reconfigure(B="fake://elsewhere")
        await running.calls(2)
        assert running.dialled == ["B", "B"]
        assert running.transport.dialled[0].closings


async def test_a_change_refused_by_the_core_changes_nothing() -> None:
    async with Running(B="fake://b") as running:
        running.core.objection = Objection("MisuseError", "B still has 3 clients behind it")
        with pytest.raises(MisuseError, match="3 clients"):
            running.reconfigure()
        assert running.driver.wiring.dial == {"B": "fake://b"}
        assert not running.transport.dialled[0].closings
        assert not any(isinstance(given, Reconfigured) for given in running.core.inputs)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("covering", True),
        ("lease_s", 1.0),
        ("heartbeat_s", 9.0),
        ("outbox_bound", 7),
        ("liveness", Liveness(gap_s=9.0)),
    ],
)
async def test_settings_do_not_change_while_a_broker_runs(setting: str, value: object) -> None:
    async with Running(B="fake://b") as running:
        wanted: BrokerConfig = replace(running.core.config, **{setting: value})
        with pytest.raises(MisuseError, match=f"{setting} of fake .* stop it and start it again"):
            running.driver.reconfigure(wanted, running.wiring)


async def test_durability_does_not_change_while_a_broker_runs() -> None:
    async with Running(B="fake://b") as running:
        with pytest.raises(MisuseError, match=r"durability of fake is 'volatile' .* 'fsync'"):
            running.driver.reconfigure(running.core.config, running.wiring, "fsync")
        running.driver.reconfigure(running.core.config, running.wiring, "volatile")


async def test_the_listening_address_does_not_change_while_a_broker_runs() -> None:
    async with Running() as running:
        with pytest.raises(MisuseError, match="listen of fake"):
            running.driver.reconfigure(running.core.config, Wiring("fake://there"))


async def test_a_bad_topology_is_logged_told_in_the_status_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "topology.toml"
    file.write_text("this is no topology")
    async with Running(B="fake://b") as running:
        reload(running.driver, file, "fake")
        process = running.driver.status()["process"]
        assert process["reloads"] == 1
        assert "is not TOML" in process["reload_error"]
        assert "the topology is not applied" in caplog.text
        assert running.driver.failure is None
        assert running.dialled == ["B"]


async def stopped_by(driver: BrokerDriver) -> BaseException:
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(StaleState) as caught:
            await driver.finished()
    return caught.value


async def test_a_neighbour_that_calls_us_stale_stops_us() -> None:
    running = Running(B="fake://b")
    await running.driver.start()
    await running.calls(1)
    running.transport.dialled[0].hear(Farewell("StaleState", "move the folder away"))
    assert "move the folder away" in str(await stopped_by(running.driver))


async def test_an_incoming_neighbour_that_calls_us_stale_stops_us() -> None:
    running = Running()
    await running.driver.start()
    connection = FakeConnection()
    connection.handler = running.transport.accept(connection)
    connection.hear(LinkHello(PROTOCOL_VERSION, "B", 1, 1, 0))
    connection.hear(Farewell("StaleState", "move the folder away"))
    assert "move the folder away" in str(await stopped_by(running.driver))


async def test_a_client_cannot_stop_a_broker_by_calling_it_stale() -> None:
    async with Running() as running:
        connection = FakeConnection()
        connection.handler = running.transport.accept(connection)
        connection.hear(Farewell("StaleState", "you are stale"))
        assert running.driver.failure is None
