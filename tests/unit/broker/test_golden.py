"""A journal that was written long ago still means what it meant: the machine has not changed under
its version number.

The file holds the records of a short life, one in a line, and the digest of what they
amount to. If this test fails, facts are read or applied in another way than before: brokers of
this release would rebuild another state from old journals without a word. Raise `MACHINE_VERSION`,
add a migration for snapshots, and write a new file (`MOTET_REWRITE=1`)."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from motet.broker import records
from motet.broker.core import BrokerCore
from motet.broker.rebuild import rebuild
from tests.unit.broker.test_image import CONFIG, eventful, lived, written

FILE = Path(__file__).parent / f"journal-v{records.MACHINE_VERSION}.txt"


def _write() -> None:
    core = BrokerCore(CONFIG)
    lines = [
        f"{kind} {base64.b64encode(payload).decode()}"
        for kind, payload in written(lived(eventful(), core))
    ]
    FILE.write_text("\n".join([*lines, f"digest {core.durable.digest()}"]) + "\n")


def test_an_old_journal_means_what_it_meant() -> None:
    if os.environ.get("MOTET_REWRITE"):
        _write()
    *lines, last = FILE.read_text().splitlines()
    journal = []
    for line in lines:
        kind, payload = line.split()
        journal.append((int(kind), base64.b64decode(payload)))
    assert len(journal) > 14
    assert f"digest {rebuild(CONFIG, None, journal).digest()}" == last
