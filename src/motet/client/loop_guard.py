"""Guards the event loop and the process that a client belongs to."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from weakref import WeakSet

from motet.errors import MisuseError


class LoopGuard:
    """Made on the event loop. Asking for the running loop costs too much for every publication:
    those check it once per batch. In a forked child nobody needs to ask: `on_forked` is called."""

    def __init__(self, on_forked: Callable[[MisuseError], None] | None = None) -> None:
        self.foreign: MisuseError | None = None
        """Set in a forked child, whose copy of the client has no session."""
        self._on_forked = on_forked
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        _guards.add(self)

    def check(self) -> None:
        """Raise unless it is called on the client's event loop, or on that loop's thread while the
        loop is not running."""
        if self.foreign is not None:
            raise self.foreign
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            if threading.get_ident() != self._thread:
                raise _elsewhere() from None
        else:
            self.check_loop(loop)

    def check_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """The same, for a caller that knows the running loop."""
        if loop is not self._loop:
            raise self.foreign or _elsewhere()

    def forked(self) -> None:
        """This is a forked child. Nothing here may write: the sockets are the parent's, too."""
        self.foreign = foreign_process()
        if self._on_forked is not None:
            self._on_forked(self.foreign)


def foreign_process() -> MisuseError:
    return MisuseError("this client belongs to the parent process; connect again after fork")


def _elsewhere() -> MisuseError:
    return MisuseError(
        "this client belongs to another event loop; connect again in this one, or use "
        "`connect_sync`, whose clients any thread may call"
    )


_guards: WeakSet[LoopGuard] = WeakSet()


def _forked() -> None:
    for guard in list(_guards):
        guard.forked()


os.register_at_fork(after_in_child=_forked)
