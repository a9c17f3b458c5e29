"""The overlay changed while a broker was down: it takes the change over when it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.broker.folder.recovery import open_folder
from motet.errors import MisuseError
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Received
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.messages import Control, LinkHello
from motet.protocol.routing.messages import ClientHere

LINK = 1


def config(*neighbours: str) -> BrokerConfig:
    return BrokerConfig("A", neighbours)


async def started(folder: Path, *neighbours: str) -> dict[str, int]:
    """Open and close; the neighbours it has, each with our life."""
    core, journal, _ = open_folder(config(*neighbours), folder)
    await journal.close()
    return {name: link.ledger.record.life for name, link in core.links.items()}


async def test_other_neighbours_are_taken_over_and_written_down(tmp_path: Path) -> None:
    (life,) = (await started(tmp_path, "B")).values()
    assert await started(tmp_path, "B", "C") == {"B": life, "C": life + 1}
    assert await started(tmp_path, "C", "B") == {"B": life, "C": life + 1}
    assert await started(tmp_path, "C") == {"C": life + 1}
    assert await started(tmp_path, "B", "C") == {"B": life + 2, "C": life + 1}


async def test_a_neighbour_with_clients_cannot_go_this_way_either(tmp_path: Path) -> None:
    core, journal, _ = open_folder(config("B"), tmp_path)
    for frame in (
        LinkHello(PROTOCOL_VERSION, "B", 5, 0, 0),
        Control(1, (ClientHere("bob", "B-5.1"),)),
    ):
        journal.append(core.step(Received(LINK, frame), 1.0).persist)
    await journal.close()
    with pytest.raises(MisuseError, match=r"A cannot start with .* B still has 1 client behind it"):
        open_folder(config("C"), tmp_path)
    assert "B" in await started(tmp_path, "B"), "and nothing was changed by the attempt"
