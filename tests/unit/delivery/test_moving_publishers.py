"""A publisher moves between two pubends while links fail, brokers crash and clients come and go."""

from __future__ import annotations

import pytest

from motet.protocol.delivery.gates import Passage
from motet.protocol.delivery.stream import Limits
from tests.unit.delivery.moving import MovingWorld

TREE = {
    "r": ["i"],
    "i": ["r", "a", "b"],
    "a": ["i"],
    "b": ["i"],
}
SMALL = Limits(
    memory_events=40,
    memory_bytes=40_000,
    piece_events=7,
    piece_bytes=4_000,
    window_events=12,
    known_ranges=4,
)
CLIENTS = {"x": "a", "y": "b", "z": "r", "w": "b", "v": "i"}


def storm(seed: int, limits: Limits | None, steps: int = 150) -> MovingWorld:
    world = MovingWorld(
        TREE,
        {"P": "r", "Q": "a"},
        CLIENTS,
        durable=("w", "z"),
        seed=seed,
        loss=0.1,
        jitter_s=0.1,
        limits=limits,
    )
    dice = world.random
    for name in CLIENTS:
        world.connect(name)
        world.subscribe(name, dice.sample(range(world.topics), dice.choice([1, 2, 4])), 1)
    world.run(3.0)
    for _ in range(steps):
        world.run(dice.random() * 0.3)
        turn = dice.randrange(20)
        name = dice.choice(sorted(CLIENTS))
        client = world.clients[name]
        broker = dice.choice(sorted(TREE))
        neighbour = dice.choice(TREE[broker])
        if turn < 2:
            world.publish(dice.choice("PQ"), dice.choice([1, 2, 5]))
        elif turn < 7:
            world.publish_moving(dice.choice([1, 1, 2, 5, 20]))
        elif turn < 10:
            world.move("Q" if world.home == "P" else "P")
            world.publish_moving(dice.choice([0, 1, 2]))
        elif turn == 10 and client.connected:
            world.disconnect(name)
        elif turn == 11 and name in world.durable:
            world.end_process(name)
        else:
            world.disturb(turn, name, broker, neighbour)
        for each in CLIENTS:
            world.judge_order(each)
    world.loss = world.jitter_s = 0.0
    world.end_storm()
    return world


@pytest.mark.parametrize("limits", [None, SMALL], ids=["much memory", "little memory"])
@pytest.mark.parametrize("seed", range(8))
def test_events_of_a_moving_publisher_keep_their_order(seed: int, limits: Limits | None) -> None:
    world = storm(seed, limits)
    assert not any(client.lost for client in world.clients.values())


def storms() -> None:
    for seed in range(20):
        storm(seed, None)


def test_a_storm_notices_open_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Passage, "is_open", lambda *_: True)
    with pytest.raises(AssertionError, match="out of order"):
        storms()


def test_a_storm_notices_gates_that_open_on_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_below(self: Passage, pubend: str, tick: int) -> bool:
        position = self.positions.get(pubend)
        if position is None or not position.present:
            return position is not None
        return position.standing(self._stream(pubend).subend.horizon) < tick

    monkeypatch.setattr(Passage, "_is_below", is_below)
    with pytest.raises(AssertionError, match="out of order"):
        storms()
