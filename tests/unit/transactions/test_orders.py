"""Places in the order of operations: Definition 3.4's, as text that sorts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.protocol.transactions.messages import is_tx, op_of
from tests.unit.transactions.broker_a import op

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=5)
PLACES = st.integers(1, 99_999_999)


def place(number: int, *behind: tuple[str, int]) -> str:
    """The k-th operation of the coordinator; what an invitee of it does; what its invitee does."""
    return "/".join([f"{number:08d}", *(f"{name}/{at:08d}" for name, at in behind)])


@given(PLACES, PLACES, NAMES, PLACES)
def test_operations_of_an_invitee_are_ordered_between_the_invitation_and_the_next_operation(
    first: int, second: int, client: str, number: int
) -> None:
    low, high = sorted((first, second))
    assert place(low) < place(low, (client, number))
    if low < high:
        assert place(low, (client, number)) < place(high)


@given(PLACES, NAMES, PLACES, PLACES, NAMES, PLACES)
def test_operations_of_nested_invitations_are_ordered_likewise(
    k: int, client: str, one: int, two: int, other: str, number: int
) -> None:
    low, high = sorted((one, two))
    nested = place(k, (client, low), (other, number))
    assert place(k, (client, low)) < nested
    if low < high:
        assert nested < place(k, (client, high))


@given(PLACES, NAMES, NAMES, PLACES, PLACES)
def test_operations_of_one_invitee_stay_together(
    k: int, client: str, other: str, one: int, two: int
) -> None:
    """Which of two invitees comes first is nobody's business, but they do not mix."""
    theirs = [place(k, (client, at)) for at in (one, two)]
    others = [place(k, (other, at)) for at in (one, two)]
    if client != other:
        assert max(theirs) < min(others) or max(others) < min(theirs)


def test_a_transaction_is_named_by_the_request_that_began_it() -> None:
    named = op("a/b", 7)
    assert op_of(str(named)) == named
    assert is_tx(str(named))
    for wrong in ("", "T1", "a/b", "a/b/c", "/b/1", "a/b/1e3", f"a/b/{'9' * 19}"):
        assert not is_tx(wrong), wrong
