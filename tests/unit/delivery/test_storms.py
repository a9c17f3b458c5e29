"""Everything at once: bad links, crashes, clients that come, go, dawdle and return."""

from __future__ import annotations

import pytest

from motet.protocol.delivery.stream import Limits
from tests.unit.delivery.world import World

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


def storm(seed: int, limits: Limits | None, merged: tuple[str, ...] = ()) -> World:
    world = World(
        TREE,
        {"P": "r", "Q": "a"},
        {"x": "a", "y": "b", "z": "r", "w": "b"},
        seed=seed,
        loss=0.15,
        doubling=0.1,
        jitter_s=0.05,
        limits=limits,
        merged=merged,
    )
    dice = world.random
    sequences = dict.fromkeys(world.clients, 0)
    for name in world.clients:
        world.connect(name)
    for _ in range(150):
        world.run(dice.random() * 0.3)
        move = dice.randrange(20)
        name = dice.choice(sorted(world.clients))
        client = world.clients[name]
        broker = dice.choice(sorted(TREE))
        neighbour = dice.choice(TREE[broker])
        if move < 8:
            world.publish(dice.choice("PQ"), dice.choice([1, 1, 2, 5, 20]))
        elif move < 10:
            own = [op for op in world.subscriptions if op.client == name]
            if len(own) < 2:
                sequences[name] += 1
                topics = dice.sample(range(world.topics), dice.choice([1, 2, 4]))
                world.subscribe(name, topics, sequences[name])
        elif move == 10:
            own = [op for op in world.subscriptions if op.client == name]
            if own and dice.random() < 0.3:
                world.unsubscribe(dice.choice(own))
        elif move == 11 and client.connected:
            world.disconnect(name)
        else:
            world.disturb(move, name, broker, neighbour)
    world.loss = world.doubling = world.jitter_s = 0.0
    world.end_storm()
    return world


@pytest.mark.parametrize("seed", range(12))
def test_every_client_gets_exactly_what_it_is_owed(seed: int) -> None:
    world = storm(seed, None)
    assert not any(client.lost for client in world.clients.values())


@pytest.mark.parametrize("seed", range(12))
def test_storms_lose_nothing_with_little_memory(seed: int) -> None:
    world = storm(seed, SMALL)
    assert not any(client.lost for client in world.clients.values())


@pytest.mark.parametrize("seed", range(12))
def test_clients_in_total_order_see_one_order(seed: int) -> None:
    world = storm(seed, SMALL if seed % 2 else None, merged=("w", "x"))
    assert not any(client.lost for client in world.clients.values())
