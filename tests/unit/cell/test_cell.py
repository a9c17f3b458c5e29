"""A cell of two, frame by frame: what a mate knows, what waits for it, and who is believed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from motet.broker.core.cell.mate import MateCore
from motet.errors import NoClientsHere
from motet.protocol.cell import belief
from motet.protocol.cell.messages import MemberFrame, SidewaysFrame
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Received
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.session.messages import ClientHello
from motet.testing.bugs.catalogue import Patch, patched
from tests.unit.cell.stage import Stage

LONG_S = 30.0


class Scene(Stage):
    """A publisher at P, and a subscriber at E that wants little. Streams pass through the mate:
    nothing but its stream links joins P and E to the cell for them."""

    def __init__(self) -> None:
        super().__init__()
        self.link_all()
        self.alice = self.connect("alice", "P")
        assert self.advertise(self.alice, "x >= 0")
        self.bob = self.connect("bob", "E")
        assert self.subscribe(self.bob, "x = 1")

    def through_the_mate(self, *names: str) -> None:
        """From now on these choose the mate, whatever the hash of the pubend's name says."""
        for name in names or ("P", "E"):
            bundle = self.cores[name].membership.bundle
            bundle._owner.head_link = lambda _: 0
            bundle.changed()

    def event(self, x: int) -> None:
        self.publish(self.alice, x=x)


def mirrored(stage: Stage) -> bool:
    mate, head = stage.cores["Bm"], stage.cores["B"]
    return mate.now_of is not None and mate.now_of.durable.digest() == head.durable.digest()


def test_a_mate_has_the_state_of_its_head_whenever_it_came() -> None:
    stage = Stage()
    stage.link(("P", "B"), ("E", "B"))
    bob = stage.connect("bob", "E")
    alice = stage.connect("alice", "P")
    assert stage.advertise(alice, "x > 0")
    stage.link(("Bm", "B"))
    assert mirrored(stage)
    assert stage.subscribe(bob, "x > 5")
    assert mirrored(stage)
    stage.cut("Bm", "B")
    assert stage.subscribe(bob, "x > 7")
    assert not mirrored(stage)
    stage.link(("Bm", "B"))
    assert mirrored(stage)


def test_an_operation_is_effective_only_after_the_mate_has_it() -> None:
    scene = Scene()
    scene.stop("Bm")
    assert not scene.subscribe(scene.bob, "x = 2")
    assert scene.cores["B"].withheld() > 0
    scene.go_on("Bm")
    assert scene.cores["B"].withheld() == 0
    assert scene.is_done(scene.bob)


def test_a_stalled_mate_is_given_up() -> None:
    scene = Scene()
    scene.stop("Bm")
    assert not scene.subscribe(scene.bob, "x = 2")
    scene.wait(2 * scene.cores["B"].config.mirror_s)
    assert scene.cores["B"].withheld() == 0
    assert scene.trace.story is not None
    assert any("Bm has not taken a fact" in line for line in scene.trace.story)
    assert scene.is_done(scene.bob)


@pytest.mark.parametrize("trusting", [False, True])
def test_the_silence_of_a_mate_without_its_head_hides_no_event(trusting: bool) -> None:
    scene = Scene()
    scene.event(1)
    assert scene.delivered(scene.bob) == [1]
    scene.cut("Bm", "B")
    assert scene.subscribe(scene.bob, "x = 2")
    scene.through_the_mate()
    bug = patched([Patch(belief, "counts", lambda *_: True)]) if trusting else nullcontext()
    with bug:
        scene.event(2)
        scene.event(1)
        scene.wait(LONG_S)
    late = [1] if not trusting else [1, 3]
    assert scene.delivered(scene.bob) == late, "only who believes it goes on, without the event"
    scene.link(("Bm", "B"))
    scene.wait(LONG_S)
    assert scene.delivered(scene.bob) == ([1, 3] if trusting else [1, 2, 3])


def test_early_silence_of_a_mate_counts_after_it_has_caught_up() -> None:
    """The subscription is on its way: E has sent it, the mate has not heard of it yet."""
    scene = Scene()
    scene.through_the_mate()
    scene.stop("B")
    scene.subscribe(scene.bob, "x = 2")
    for x in (3, 3, 1):
        scene.event(x)
    assert scene.delivered(scene.bob) == []
    scene.go_on("B")
    scene.event(1)
    assert scene.delivered(scene.bob) == [3, 4]


def test_streams_go_on_while_the_head_is_away() -> None:
    scene = Scene()
    scene.event(1)
    scene.cut("B", "P", "E", "Bm")
    for x in (1, 4, 1):
        scene.event(x)
    assert scene.delivered(scene.bob) == [1, 2, 4]


def test_a_subscription_that_cannot_leave_holds_nothing_up() -> None:
    scene = Scene()
    scene.cut("B", "P", "E", "Bm")
    assert not scene.subscribe(scene.bob, "x = 2")
    for x in (1, 4, 1):
        scene.event(x)
    assert scene.delivered(scene.bob) == [1, 3]


def test_a_member_without_links_passes_frames_to_its_mate_once() -> None:
    scene = Scene()
    scene.event(1)
    scene.cut("B", "E")
    scene.cores["P"].membership.bundle._ways.clear()
    carried: list[Any] = []
    core = scene.cores["Bm"]
    carry = core.bundle._carry

    def watch(frame: SidewaysFrame, out: Any) -> None:
        carried.append(frame)
        carry(frame, out)

    core.bundle._carry = watch
    direct = scene.cores["P"].links["B"].soft.connection
    scene.cores["P"].membership.bundle._look = lambda *_: (direct, "B")
    scene.event(1)
    assert scene.delivered(scene.bob) == [1, 2]
    assert carried
    assert all(isinstance(each.said, MemberFrame) and each.said.origin == "B" for each in carried)


def test_a_cell_acknowledges_when_those_below_it_have() -> None:
    scene = Scene()
    scene.through_the_mate()
    scene.event(1)
    publisher = scene.cores["P"]
    last = publisher.streams.last_tick
    scene.wait(LONG_S)
    assert publisher.done_with() < last, "bob has not said that he is done"
    scene.processed(scene.bob)
    scene.wait(LONG_S)
    assert publisher.done_with() == last


def test_a_mate_hears_what_was_acknowledged_to_its_head() -> None:
    """The publisher's broker chooses the mate, and the subscriber's reaches the head only."""
    scene = Scene()
    scene.cut("E", "Bm")
    scene.through_the_mate("P")
    scene.event(1)
    assert scene.delivered(scene.bob) == [1]
    publisher = scene.cores["P"]
    last = publisher.streams.last_tick
    scene.processed(scene.bob)
    scene.wait(LONG_S)
    assert publisher.done_with() == last


def test_a_new_mate_acknowledges_nothing_for_brokers_below_it() -> None:
    """It does not know how far those below it are, and must not take silence for consent."""
    scene = Scene()
    scene.event(1)
    pubend = scene.cores["P"].streams.pubend
    scene.cut("Bm", "B")
    scene.link(("Bm", "B"))
    machine = scene.cores["Bm"].now_of.machine
    scene.through_the_mate()
    scene.event(1)
    assert machine is scene.cores["Bm"].now_of.machine
    assert machine._acks.settled(machine._stream(pubend)) == 0


def test_a_head_with_clients_gets_events_sent_to_its_mate() -> None:
    scene = Scene()
    carl = scene.connect("carl", "B")
    assert scene.subscribe(carl, "x = 5")
    scene.through_the_mate()
    for x in (5, 1, 5):
        scene.event(x)
    assert scene.delivered(carl) == [1, 3]
    assert scene.delivered(scene.bob) == [2]


def test_a_mate_acknowledges_after_a_client_of_its_head_has_left() -> None:
    """The mate saw the client's subscription start in the stream; it must not wait for a client
    that only the head serves."""
    scene = Scene()
    scene.through_the_mate()
    carl = scene.connect("carl", "B")
    assert scene.subscribe(carl, "x = 5")
    publisher = scene.cores["P"]
    scene.event(5)
    assert scene.delivered(carl) == [1]
    carl.take_back(*carl.standing("subscribe"), wait=True, timeout_s=LONG_S)
    scene.wait()
    scene.event(1)
    last = publisher.streams.last_tick
    scene.processed(scene.bob)
    scene.wait(LONG_S)
    assert publisher.done_with() == last


def test_clients_are_sent_to_the_head() -> None:
    mate = MateCore(BrokerConfig("Bm", ("P", "E"), head="B", head_at="there"))
    out = mate.step(Received(99, ClientHello(PROTOCOL_VERSION, "carl")), 1.0)
    (close,) = out.close
    assert close.error == NoClientsHere.__name__
    assert "connect to B at there" in close.text
