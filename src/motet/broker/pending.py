"""What a broker has published, until its log has it."""

from __future__ import annotations

from typing import NamedTuple

from motet.model import OpId
from motet.protocol.publication import Publication
from motet.protocol.session.messages import Refusal


class Pending(NamedTuple):
    """Something that is answered once the log has `number` records of this life."""

    number: int
    client: str
    epoch: str
    upto: int
    refused: tuple[Refusal, ...]
    first_tick: int
    batch: list[Publication]
    start: OpId | None = None


def silence_upto(number: int, upto: int) -> Pending:
    """What is announced then is that no event comes up to this tick."""
    return Pending(number, "", "", 0, (), upto, [])


def runs_of(numbers: list[int]) -> list[tuple[int, int]]:
    """Stretches of consecutive numbers, as index ranges."""
    if not numbers:
        return []
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return [(0, len(numbers))]
    found, begin = [], 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            found.append((begin, index))
            begin = index
    return found
