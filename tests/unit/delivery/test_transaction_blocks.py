"""Blocks of one transaction at a client: held back, released as one, in the transaction's order."""

from __future__ import annotations

from msgspec import Raw

from motet.protocol.delivery.blocks import MOST_BLOCKS, BlockQueues, CutProgress, Cuts
from motet.protocol.delivery.messages import Delivered
from motet.protocol.delivery.spans import CutRecord
from motet.protocol.delivery.subend import Position
from motet.protocol.publication import Publication

A, B = "A.1", "B.1"


def record(number: int, tick: int, orders: str, pubends: tuple[str, ...] = (A, B)) -> CutRecord:
    last = tick + len(orders)
    return CutRecord(tick, f"tx{number}", (), pubends, last, number, tuple(orders))


def frame(pubend: str, upto: int, *ticks: int) -> Delivered:
    batch = [Publication(pubend, tick, Raw(b"\x90")) for tick in ticks]
    return Delivered(pubend, upto, list(ticks), batch, (1,))


class Client:
    """One client that reads A and B, as its broker sees it."""

    def __init__(self, *pubends: str) -> None:
        self.positions = {each: Position("c", 0) for each in pubends or (A, B)}
        self.cuts = {A: Cuts(), B: Cuts()}
        self.gone: list[str] = []
        self.holders: dict[str, BlockQueues] = {}
        self.block_queues = BlockQueues("c", self.positions, self._standing, self.holders)
        self.got: list[tuple[str, int]] = []
        self.frames: list[Delivered] = []

    def _standing(self, pubend: str) -> CutProgress | None:
        position = self.positions.get(pubend)
        if position is None:
            return None
        return CutProgress(position.given, self.cuts[pubend], pubend in self.gone)

    def give(self, told: Delivered, *records: CutRecord) -> None:
        for each in records:
            self.cuts[told.pubend].note(each)
        if told.pubend in self.positions:
            self.positions[told.pubend].given = told.upto
        self._take(self.block_queues.pass_by(told, self.cuts[told.pubend]))
        self.move()

    def move(self) -> None:
        self._take(self.block_queues.release())

    def _take(self, frames: list[Delivered]) -> None:
        self.frames += frames
        self.got += [(each.pubend[0], tick) for each in frames for tick in each.ticks]


def test_a_block_waits_for_its_other_half_and_both_come_in_the_order_of_the_transaction() -> None:
    client = Client()
    client.give(frame(A, 14, 9, 11, 12, 14), record(1, 10, "13"))
    assert client.got == [("A", 9)], "what stands before the block does not wait"
    client.give(frame(B, 30, 21), record(1, 20, "2x"))
    assert client.got == [("A", 9), ("A", 11), ("B", 21), ("A", 12), ("A", 14)]


def test_the_order_is_that_of_the_transaction_not_of_the_pubends() -> None:
    client = Client()
    client.give(frame(B, 22, 21, 22), record(1, 20, "ac"))
    client.give(frame(A, 12, 11, 12), record(1, 10, "bd"))
    assert client.got == [("B", 21), ("A", 11), ("B", 22), ("A", 12)]
    assert [each.more for each in client.frames] == [True, True, True, False]
    assert [each.blocks for each in client.frames] == [
        (("tx1", 20, 22),),
        (("tx1", 10, 12),),
        (("tx1", 20, 22),),
        (("tx1", 10, 12),),
    ]
    assert not client.holders


def test_the_last_frame_of_a_pubend_carries_its_cursor_and_none_before() -> None:
    client = Client()
    client.give(frame(A, 40, 11, 12), record(1, 10, "ac"))
    client.give(frame(B, 50, 21), record(1, 20, "b"))
    assert [(each.pubend, each.upto) for each in client.frames] == [(A, 11), (B, 50), (A, 40)]


def test_a_block_does_not_wait_for_a_half_without_local_subscribers() -> None:
    client = Client()
    client.give(frame(A, 12, 11, 12), record(1, 10, "ab"))
    assert client.got == []
    assert list(client.block_queues.wondering) == [B]
    client.cuts[B].note(record(1, 20, "c"))
    client.move()
    assert client.got == [], "B has cut, but we are not there"
    assert not client.block_queues.wondering
    client.positions[B].given = 21
    client.move()
    assert client.got == [("A", 11), ("A", 12)]


def test_a_later_cut_shows_that_an_earlier_one_has_passed() -> None:
    """A subscription that began behind the other half never sees it: it must not wait for it."""
    client = Client()
    client.positions[B].given = 100
    client.give(frame(A, 12, 11), record(5, 10, "ab"))
    assert list(client.block_queues.wondering) == [B]
    client.cuts[B].passed(4, 90)
    client.move()
    assert client.got == []
    client.cuts[B].note(record(7, 120, "a"))
    client.move()
    assert client.got == [], "the cut of 5 may lie between 100 and 119"
    client.positions[B].given = 119
    client.move()
    assert client.got == [("A", 11)]


def test_a_message_of_the_pubend_shows_that_a_cut_has_passed() -> None:
    client = Client()
    client.positions[B].given = 100
    client.give(frame(A, 12, 11), record(5, 10, "ab"))
    client.cuts[B].passed(5, 100)
    client.move()
    assert client.got == [("A", 11)]


def test_a_client_that_reads_one_pubend_does_not_wait_for_the_other_half() -> None:
    client = Client(A)
    client.give(frame(A, 12, 11, 12), record(1, 10, "ab"))
    assert client.got == [("A", 11), ("A", 12)]


def test_a_block_does_not_wait_for_a_pubend_that_is_gone_or_not_read() -> None:
    client = Client()
    client.give(frame(A, 12, 11), record(1, 10, "ab"))
    client.gone.append(B)
    client.move()
    assert client.got == [("A", 11)]
    client = Client()
    client.give(frame(A, 12, 11), record(1, 10, "ab"))
    del client.positions[B]
    client.move()
    assert client.got == [("A", 11)]


def test_a_waiting_block_of_a_pubend_no_longer_read_is_dropped() -> None:
    client = Client()
    client.give(frame(A, 12, 11, 12), record(1, 10, "ab"))
    assert client.positions[A].exempt == 2
    client.block_queues.leave(A)
    assert client.positions[A].exempt == 0
    assert not client.holders
    client.give(frame(A, 15, 15))
    assert client.got == [("A", 15)]


def test_transactions_of_one_pubend_are_marked_and_wait_for_nothing() -> None:
    client = Client()
    alone = CutRecord(10, "tx1", (), (A,), 12, 1)
    client.give(frame(A, 13, 9, 11, 12, 13), alone)
    assert client.got == [("A", 9), ("A", 11), ("A", 12), ("A", 13)]
    assert [each.blocks for each in client.frames] == [(("tx1", 10, 12),)]


def test_several_transactions_wait_in_order() -> None:
    client = Client()
    client.give(frame(A, 40, 11, 21, 25, 31), record(1, 10, "a"), record(2, 20, "a"))
    assert client.got == []
    assert client.positions[A].exempt == 1, "only of the first one: memory must stay bounded"
    client.give(frame(B, 20), record(1, 10, "b"))
    assert client.got == [("A", 11)]
    client.give(frame(B, 30, 22), record(2, 20, "0b"))
    assert client.got == [("A", 11), ("A", 21), ("B", 22), ("A", 25), ("A", 31)]


def test_a_block_received_in_pieces_is_one_block() -> None:
    client = Client()
    client.give(frame(B, 23, 21), record(1, 20, "b"))
    client.give(frame(A, 11, 11), record(1, 10, "ac"))
    assert client.got == []
    client.give(frame(A, 12, 12))
    assert client.got == [("A", 11), ("B", 21), ("A", 12)]


def test_a_loss_is_reported_after_waiting_events() -> None:
    client = Client()
    client.give(frame(A, 11, 11), record(1, 10, "a"))
    client.give(Delivered(A, 99, lost=((12, 99),)))
    assert client.frames == []
    client.give(frame(B, 30), record(1, 20, "b"))
    assert [each.lost for each in client.frames if each.pubend == A] == [(), ((12, 99),)]


def test_cuts_are_remembered_only_so_far() -> None:
    cuts = Cuts()
    for number in range(1, MOST_BLOCKS + 100):
        cuts.note(record(number, 10 * number, "a"))
    assert cuts.block_at(11) is None
    newest = cuts.block_at(10 * (MOST_BLOCKS + 50) + 1)
    assert newest is not None
    assert newest.number == MOST_BLOCKS + 50
    assert cuts.block_at(10 * (MOST_BLOCKS + 50)) is None, "the cut itself is no event"
    assert cuts.end_of(MOST_BLOCKS + 50) == 10 * (MOST_BLOCKS + 50) + 1
    assert cuts.end_of(MOST_BLOCKS + 100) is None
