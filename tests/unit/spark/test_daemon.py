"""Workers of Spark's whose tasks were called off."""

from __future__ import annotations

import socket

import pytest

from motet.spark.daemon import UNHEARD, quietly


def test_who_finds_nobody_that_listens_says_nothing() -> None:
    def work(connection: socket.socket, is_authenticated: bool) -> int:
        if is_authenticated:
            raise BrokenPipeError
        return connection.fileno()

    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert quietly(work)(ours, False) == ours.fileno()
        assert quietly(work)(ours, True) == UNHEARD


def test_what_is_wrong_is_told() -> None:
    def work(connection: socket.socket, is_authenticated: bool) -> int:
        raise ValueError(f"{connection.fileno()} {is_authenticated}")

    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ValueError, match="True"):
        quietly(work)(ours, True)
