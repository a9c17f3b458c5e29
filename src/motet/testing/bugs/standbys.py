"""Bugs in the fail-over of sites, at replicas and at their witness."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from motet.protocol.sequencing.standby import SiteFactsAck
from motet.protocol.sequencing.state import OpenImage
from motet.sequencer import pair
from motet.sequencer.core import SiteCore
from motet.sequencer.pair import Fed, Pair
from motet.sequencer.witness import WitnessCore
from motet.testing.bugs.catalogue import Patch, around, mutation, replaces
from motet.testing.ordering.sites import SimulatedSite

WITH: dict[str, Any] = {"standbys": 4, "witness": True, "pace_s": 0.3}


@mutation("ordering", "numbers", "completeness", "settles", **WITH)
@around(Pair, "tick")
def promotion_without_the_witness(original: Any, self: Pair, out: Any, now: float) -> None:
    """A standby that misses its primary leads, without a grant."""
    original(self, out, now)
    seat = self._seat
    if not seat.leads and seat.in_step and self._misses_primary(now):
        self._lead(replace(seat, term=seat.term + 1), out, now)


@mutation("ordering", "numbers", "completeness", "settles", **WITH)
@around(Pair, "_gone")
def a_primary_goes_on_alone_without_the_witness(
    original: Any, self: Pair, out: Any, now: float
) -> None:
    """A primary that loses its standby does not wait for a grant."""
    original(self, out, now)
    if self._seat.leads and self._seat.standby:
        self._sit(replace(self._seat, standby=0), out, now)


@mutation("ordering", "numbers", "completeness", "settles", **WITH)
@replaces(Pair, "withheld")
def answers_before_the_standby_has_the_fact(_: Pair) -> int:
    """A primary waits for its own disk only."""
    return 0


@mutation("ordering", "numbers", "invariants", "completeness", standbys=0, sync_s=0.05)
@replaces(SimulatedSite, "_passed")
def answers_before_disk(self: SimulatedSite, _: Any) -> int:
    """A site does not wait for its disk."""
    return int(self.journal.appended)


@mutation(
    "ordering",
    "numbers",
    "completeness",
    "settles",
    schedule="both-replicas-die-before-the-second-disk-is-done",
)
@replaces(Pair, "_acknowledge")
def the_standby_acknowledges_before_its_disk(self: Pair, out: Any) -> None:
    """A standby acknowledges facts that it may lose."""
    out.feed.append((self.connection, SiteFactsAck(self.applied)))


@mutation("ordering", "numbers", "completeness", "settles", **WITH)
def the_term_is_not_checked() -> list[Patch]:
    """A witness lets whoever was in a register change it, whatever its term has become."""
    may_change = WitnessCore.may_change
    former: dict[int, set[tuple[str, int]]] = {}

    def lenient(self: WitnessCore, register: Any, replica: int, claim: Any) -> bool:
        known = former.setdefault(id(self), set())
        known.update((register.site, each) for each in (register.primary, register.standby))
        return may_change(self, register, replica, claim) or (register.site, replica) in known

    return [Patch(WitnessCore, "may_change", lenient)]


@mutation("ordering", "numbers", "completeness", "settles", **WITH)
def a_deposed_primary_goes_on() -> list[Patch]:
    """A primary that learns of another one only stops to wait for a standby."""

    def going_on(self: Pair, seat: Any, out: Any, now: float) -> None:
        self._sit(replace(self._seat, term=seat.term, standby=0), out, now)

    return [Patch(Pair, "_step_down", going_on)]


@mutation("ordering", "numbers", "invariants", "replay", **WITH)
def an_image_without_open_numbers() -> list[Patch]:
    """A standby does not get the numbers that are open."""
    image_of = pair.image_of

    def leaving_out(durable: Any) -> list[bytes]:
        tag = OpenImage.__struct_config__.tag
        assert isinstance(tag, str)
        return [each for each in image_of(durable) if tag.encode() not in each[:8]]

    return [Patch(pair, "image_of", leaving_out)]


@mutation(
    "ordering",
    "numbers",
    "completeness",
    "settles",
    schedule="a-primary-dies-while-its-image-is-on-its-way",
)
def a_standby_is_in_step_before_it_has_all() -> list[Patch]:
    """A standby is admitted as soon as it follows."""

    def admitted(_: Fed) -> bool:
        return True

    def feeding(original: Any) -> Any:
        def feed(self: Pair, connection: int, hello: Any, out: Any, now: float) -> None:
            original(self, connection, hello, out, now)
            assert self.fed is not None
            self.fed.counts = True
            self._admit(out, now)

        return feed

    return [Patch(Fed, "has_all", property(admitted)), Patch(Pair, "_feed", feeding(Pair._feed))]


@mutation("ordering", "numbers", "invariants", **WITH)
@around(SiteCore, "_close_at_once")
def what_waits_is_sent_when_a_primary_steps_down(
    original: Any, self: SiteCore, out: Any, now: float
) -> None:
    """A deposed primary sends its clients elsewhere, behind all answers that waited."""
    original(self, out, now)
    out.close[:] = [close._replace(at_once=False) for close in out.close]
