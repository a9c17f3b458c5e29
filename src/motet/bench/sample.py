"""The event that the route benchmarks carry, and the subscriptions that it meets.

An order of a trading desk: six attributes and a payload, 142 bytes encoded. A subscription wants
one symbol of 25, prices above one bound and quantities below another: three predicates, of which
the event meets all with probability 1/25 · 1/2 · 1/2 = 1 %.
"""

from __future__ import annotations

import random

from motet.model import Filter, Value, attr

EVENT_BYTES = 142
SYMBOLS = tuple(f"SYM{i:02}" for i in range(25))
SPACE = "desk = 'equities'"
"""What publishers advertise."""
PAYLOAD = b"limit order, good till cancelled, account 000184, clearing member 4"
HIGHEST_PRICE = 1000.0
HIGHEST_QUANTITY = 10_000


def order(number: int, symbol: str, price: float, quantity: int) -> dict[str, Value]:
    return {
        "desk": "equities",
        "symbol": symbol,
        "price": price,
        "quantity": quantity,
        "buy": number % 2 == 0,
        "number": 1_000_000 + number,
    }


def orders(count: int, seed: int = 1) -> list[dict[str, Value]]:
    """The same ones for the same seed."""
    draw = random.Random(seed)
    return [
        order(
            number,
            draw.choice(SYMBOLS),
            round(draw.uniform(0, HIGHEST_PRICE), 2),
            draw.randint(200, HIGHEST_QUANTITY),
        )
        for number in range(count)
    ]


def subscriptions(count: int, seed: int = 2) -> list[Filter]:
    """Content subscriptions; on average 1 % of them match an order."""
    draw = random.Random(seed)
    return [
        (attr("symbol") == draw.choice(SYMBOLS))
        & (attr("price") > round(draw.uniform(0, HIGHEST_PRICE), 2))
        & (attr("quantity") < draw.randint(200, HIGHEST_QUANTITY))
        for _ in range(count)
    ]
