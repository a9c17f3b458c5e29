"""Parameters and words of paper 4, section 5. Figures are as its text gives them."""

from __future__ import annotations

from typing import Final, NamedTuple

SITES: Final = 5
TOPICS: Final = 1000
PER_SITE: Final = TOPICS // SITES
"""Topics 1 to 200 live at server 1, and so on; a topic with a lower number has a higher rank."""
CLIENTS: Final = 1000
"""Of the prototype."""
EACH: Final = 10
"""Topics of a subscription, as long as the rate of events is varied."""
RATES: Final = (1000, 2500, 5000, 7500, 10_000)
FIXED_RATE: Final = 5000
"""As long as subscriptions are varied."""

SIZE_CLIENTS: Final = 10_000
"""Of the sizes of timestamps."""
SIZE_TOTALS: Final = (10_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000)
"""Topics in all subscriptions together. The paper's text calls the leftmost point both 10 thousand
topics and 10 topics of each of 10,000 clients; here both are measured."""
SHAPES: Final = ("geographic", "spray")
NAMES: Final = {"geographic": "0.901", "spray": "0.349"}
"""The shapes of the power laws, as the paper names them."""


class LinkKind(NamedTuple):
    """A kind of link: mean and standard deviation of its delay."""

    mean_s: float
    deviation_s: float


NEAR: Final = LinkKind(0.010, 0.002)
FAR: Final = LinkKind(0.100, 0.010)

SIZE: Final = {"geographic": 17, "spray": 46}
"""Mean entries of a timestamp, with 10 topics per client."""
LATENCY_MS: Final = 300.0
"""Of the geographic pattern, up to 10,000 events per second: less than this."""
LATENCY: Final = "less than 300 ms, geographic, up to 10,000 events/s"
PEAK: Final = "peak at 5,000 requests/s: more than 4,000 timestamps/s"
OUTGOING: Final = {
    "geographic": "only servers 4 and 5 forward; negligible for 3, none for 1 and 2",
    "spray": "considerably higher, but for server 1",
}
FLAT: Final = "the number of subscriptions does not matter for the geographic pattern"


def site(number: int) -> str:
    return f"S{number}"


LINE: Final = tuple(site(number) for number in range(SITES, 0, -1))
"""Lowest first: timestamps go from topics of a low rank, which have high numbers, to high ranks."""
