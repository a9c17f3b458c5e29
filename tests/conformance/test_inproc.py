"""The in-process transport keeps the promises of every transport."""

from __future__ import annotations

import asyncio

from motet.runtime.inproc import InprocTransport
from tests.conformance.transport_suite import Recorder, TransportSuite
from tests.waiting import eventually


class TestInproc(TransportSuite):
    address = "inproc://conformance"
    malformed = ("inproc://", "inproc:// x", "inproc://a/b", "nothing://x", "inproc", "")
    nobody = "inproc://nobody"
    sockets = False

    async def test_a_failing_handler_costs_its_connection_only(self) -> None:
        """As with asyncio's protocols; the loop's exception handler hears of it."""
        heard: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, c: heard.append(c))
        async with self.pair() as pair:

            def fail(_: object) -> None:
                raise ValueError("the handler is wrong")

            pair.far.on_frames = fail
            pair.near.connection.send([b"x"])
            await eventually(lambda: bool(pair.far.closings and pair.near.closings))
            assert heard

    async def test_names_are_free_again(self) -> None:
        for _ in range(2):
            listening = await InprocTransport().listen("inproc://again", Recorder)
            assert listening.address == "inproc://again"
            await listening.close()
            await listening.close()
