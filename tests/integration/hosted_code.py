"""Code of hosted clients, for tests with real brokers."""

from __future__ import annotations

import asyncio
import fcntl
import json
from pathlib import Path
from typing import IO

from motet.errors import MotetError
from motet.hosted import Context, Hosted
from motet.model import Event


class Ledger(Hosted):
    """Adds up the amounts that it is told, and publishes the sum after each. No two copies run at a
    time: each locks a file, and reports it if another copy has done so."""

    context: Context
    lock: IO[str]

    async def start(self, context: Context, state: bytes | None) -> None:
        self.context = context
        folder = Path(str(context.options["folder"]))
        self.lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            with (folder / "twice").open("a") as report:
                report.write(f"{context.broker}\n")
        with (folder / "starts").open("a") as report:
            report.write(f"{context.broker} {len(state or b'')}\n")
        self.count, self.total = json.loads(state) if state else (0, 0)
        await context.advertise("total is not null")
        await context.subscribe("amount is not null")

    async def on_event(self, event: Event) -> None:
        amount = int(str(event["amount"]))
        if amount < 0:
            raise ValueError("a negative amount")
        self.count += 1
        self.total += amount
        self.context.publish({"total": self.total, "count": self.count})
        if "move" in event:
            self.context.move(str(event["move"]))
        if self.count % 7 == 0:
            await asyncio.sleep(0.001)

    async def on_move_refused(self, error: MotetError) -> None:
        self.context.publish({"total": self.total, "refused": str(error)})

    def state(self) -> bytes:
        return json.dumps((self.count, self.total)).encode()

    async def stop(self) -> None:
        self.lock.close()
