"""Journals and snapshots of older releases give the same state.

A journal is read by the version that wrote it: the machine has not changed under its number. The
file holds the records of a short life, one in a line, and the digest of what they
amount to. If this test fails, facts are read or applied in another way than before: brokers of
this release would rebuild another state from old journals without a word. Raise `MACHINE_VERSION`,
add a migration for snapshots, and write a new file (`MOTET_REWRITE=1`).

A snapshot is read by later versions, too: that of the release before, of the same life, is kept."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import msgspec

from motet.broker.core import records
from motet.broker.core.broker import BrokerCore
from motet.broker.core.rebuild import picture, rebuild
from motet.protocol.machine import Snapshot
from tests.unit.broker.test_image import CONFIG, eventful, lived, written

FILE = Path(__file__).parent / f"journal-v{records.MACHINE_VERSION}.txt"
RELEASED = 2
SNAPSHOT = Path(__file__).parent / f"snapshot-v{RELEASED}.txt"


def _write() -> None:
    core = BrokerCore(CONFIG)
    lines = [
        f"{kind} {base64.b64encode(payload).decode()}"
        for kind, payload in written(lived(eventful(), core))
    ]
    FILE.write_text("\n".join([*lines, f"digest {core.durable.digest()}"]) + "\n")


def test_an_old_journal_gives_the_same_state() -> None:
    if os.environ.get("MOTET_REWRITE"):
        _write()
    *lines, last = FILE.read_text().splitlines()
    journal = []
    for line in lines:
        kind, payload = line.split()
        journal.append((int(kind), base64.b64decode(payload)))
    assert len(journal) > 14
    assert f"digest {rebuild(CONFIG, None, journal).digest()}" == last


def test_a_snapshot_of_the_previous_release_gives_the_same_state() -> None:
    payloads = [base64.b64decode(line) for line in SNAPSHOT.read_text().splitlines()]
    again = rebuild(CONFIG, Snapshot(RELEASED, payloads), [])
    BrokerCore(CONFIG, again).validate()
    told = [msgspec.msgpack.decode(payload) for payload in payloads]
    now = [msgspec.msgpack.decode(payload) for _, payload in picture(again)]
    kinds = {part[0] for part in told}
    assert len(kinds) > 10
    assert _is_in(told, [part for part in now if part[0] in kinds])
    assert not again.transactions.decider.state.outcomes


def _is_in(old: Any, new: Any) -> bool:
    """The same, but for fields that were added, and say nothing yet."""
    if isinstance(old, list) and isinstance(new, list):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        kept = all(key in new and _is_in(old[key], new[key]) for key in old)
        return kept and not any(new[key] for key in new if key not in old)
    return bool(old == new)
