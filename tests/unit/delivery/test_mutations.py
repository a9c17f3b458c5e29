"""Deliberate bugs: a storm that does not notice them would prove nothing."""

from __future__ import annotations

from typing import Any

import pytest

from motet.errors import MotetError
from motet.protocol.delivery.clients import Clients
from motet.protocol.delivery.machine import DeliveryMachine
from motet.protocol.delivery.neighbours import Acknowledgements, Nacks, Relay
from motet.protocol.delivery.spans import Memory, Span
from motet.protocol.delivery.stream import AskedRanges, OutStream, Stream
from motet.protocol.delivery.subend import Position, Subend
from motet.protocol.delivery.total_order import Merge
from tests.unit.delivery.test_storms import SMALL, storm

MOST_SEEDS = 40


def a_gap_is_taken_for_silence(patch: pytest.MonkeyPatch) -> None:
    def telling(self: OutStream, since: int, upto: int) -> int:
        begin, self.since, self.quiet = min(self.since, since), upto + 1, upto
        return begin

    patch.setattr(OutStream, "telling", telling)


def what_was_not_acknowledged_counts_as_read(patch: pytest.MonkeyPatch) -> None:
    def settled(self: Position, horizon: int | None) -> int:
        return max(self.given, horizon or 0)

    patch.setattr(Position, "settled", settled)


def nobody_waits_for_an_earlier_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Clients, "_held", lambda *_: False)


def ticks_are_acknowledged_in_doubt_about_starts(patch: pytest.MonkeyPatch) -> None:
    real = Stream.__init__

    def init(self: Stream, *args: Any) -> None:
        real(self, *args)
        self.cleared = 1 << 60

    patch.setattr(Stream, "__init__", init)


def a_start_is_told_only_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Acknowledgements, "_of", lambda _self, _neighbour, _starts: ())


def neighbours_are_not_asked_before_the_log_shrinks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Acknowledgements, "wanting", lambda _self, _stream: [])


def a_cursor_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    real = Subend._catch

    def catch(self: Subend, position: Position) -> None:
        real(self, position)
        position.barrier = 0

    patch.setattr(Subend, "_catch", catch)


def a_question_is_never_asked_twice(patch: pytest.MonkeyPatch) -> None:
    real = AskedRanges.fresh
    patch.setattr(
        AskedRanges, "fresh", lambda self, ranges, _now, **how: real(self, ranges, 0.0, **how)
    )


def nobody_is_curious(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Nacks, "ask", lambda *_: None)


def retransmissions_are_not_passed_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Relay, "repeat", lambda *_: None)


def forgotten_ticks_are_called_silent(patch: pytest.MonkeyPatch) -> None:
    real = Memory.pieces

    def pieces(self: Memory, since: int, upto: int) -> list[Span]:
        found = list(real(self, since, upto))
        return (
            [Span(since, found[0].since - 1), *found] if found and found[0].since > since else found
        )

    patch.setattr(Memory, "pieces", pieces)


def no_acknowledgement_is_expected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Acknowledgements, "expect", lambda *_args, **_more: None)


def doubled_news_is_news(patch: pytest.MonkeyPatch) -> None:
    class Never:
        top = 0

        def __len__(self) -> int:
            return 0

        def add(self, low: int, high: int) -> None: ...

        def validate(self) -> None: ...

    real = Stream.__init__

    def init(self: Stream, *args: Any) -> None:
        real(self, *args)
        self.known = Never()  # type: ignore[assignment]

    patch.setattr(Stream, "__init__", init)
    patch.setattr(Memory, "accumulate", lambda self, span: self._insert(len(self), span))


def a_merge_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    real = Merge.release

    def release(self: Merge) -> Any:
        before = dict(self._horizons)
        self._horizons.update(dict.fromkeys(before, max(before.values(), default=0)))
        found = real(self)
        self._horizons.update(before)
        return found

    patch.setattr(Merge, "release", release)


def floors_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeliveryMachine, "restore", lambda *_: None)


MUTATIONS = [
    a_gap_is_taken_for_silence,
    what_was_not_acknowledged_counts_as_read,
    nobody_waits_for_an_earlier_start,
    ticks_are_acknowledged_in_doubt_about_starts,
    a_start_is_told_only_once,
    neighbours_are_not_asked_before_the_log_shrinks,
    a_cursor_is_not_looked_at,
    a_question_is_never_asked_twice,
    nobody_is_curious,
    retransmissions_are_not_passed_on,
    forgotten_ticks_are_called_silent,
    no_acknowledgement_is_expected,
    doubled_news_is_news,
    a_merge_does_not_wait,
    floors_are_lost,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.__name__)
def test_a_storm_notices_a_bug(mutation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            world = storm(seed, SMALL if seed % 2 else None, merged=("w", "x"))
            assert not any(client.lost for client in world.clients.values())
        except (AssertionError, MotetError):
            return
    pytest.fail(f"{MOST_SEEDS} storms did not notice it")
