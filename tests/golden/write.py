"""Writes `folders.tar.xz` and `folders.json`: the data folders of brokers of commit f894ba4.

Works only with the source of that commit, whose API it uses:

    git worktree add /tmp/f894ba4 f894ba4
    PYTHONPATH=/tmp/f894ba4/src python tests/golden/write.py

Never run it with a later release: the files are there to show that later releases read the old
ones. A file set of a later format belongs beside this one, under another name.

Four worlds, all over TCP, with brokers as processes that sync their journals:

| world | brokers | how it ended |
| --- | --- | --- |
| `killed` | B1 – B2 – B3, root B2 | B3 is killed first, then B1 and B2; B1 and B3 have a journal only, B2 a snapshot and facts behind it |
| `closed` | the same | folders of `killed` after `motet journal snapshot`: all state is in the snapshots |
| `cell` | p1 – b1 with the mate b2 – s1 | all are killed |
| `changed` | C1 – C2 – C3 | sessions end, the log of C1 is destroyed and its loss accepted, C3 leaves the overlay; then all are killed |

`upgraded.tar.xz` has the folders of `cell` and `changed` after `motet journal snapshot` of the same
commit: facts of version 6 are not read by later machines.
"""
# ruff: noqa: E501, I001 - a long table; imports of modules that have moved since

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import motet
from motet.broker.recovery import read_durable
from motet.broker.topology import BrokerPlace, Topology
from motet.cli.looking import ask_all, missing_links
from motet.client.sinking import Attempt, StagedPart, commit, open_stage
from motet.model import encode_event

HERE = Path(__file__).parent
FOR_EVER_S = 366 * 86_400.0
RETENTION = (
    '{ history = "10d", age = "10d", size = "1MiB", share = 1.0, free = 0.0, cursors = "10d" }'
)
"""Segments of 128 KiB, so that some of the log of B1 is sealed."""
WORLDS = ("killed", "closed", "cell", "changed")
OPEN_S = 3600.0
"""The timeout of transactions that are open when the brokers are killed."""


class World:
    """Brokers that are processes, each with a folder in `directory`."""

    def __init__(self, directory: Path, topology: Topology) -> None:
        self.directory = directory
        self.topology = topology
        self.file = directory / "topology.toml"
        self.file.write_text(topology.to_toml())
        self.processes: dict[str, Popen[bytes]] = {}

    @property
    def addresses(self) -> dict[str, str]:
        return {place.name: place.listen for place in self.topology.processes}

    async def start(self, *names: str, options: tuple[str, ...] = ()) -> None:
        for name in names or tuple(self.addresses):
            with (self.directory / f"{name}.stderr").open("ab") as errors:
                self.processes[name] = Popen(
                    (
                        *(sys.executable, "-m", "motet", "broker", "--topology", str(self.file)),
                        *("--name", name, "--data", str(self.directory / name)),
                        *("--json", "--while-stdin", *options),
                    ),
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=errors,
                    process_group=0,
                )
        while missing_links(await ask_all(self.addresses)):
            await asyncio.sleep(0.05)

    def stop(self, name: str, number: int = signal.SIGKILL) -> None:
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.wait(60)

    def kill_all(self) -> None:
        for name in list(self.processes):
            self.stop(name)

    async def connect(self, name: str, broker: str, **options: Any) -> motet.Client:
        return await motet.connect(self.addresses[broker], client_id=name, **options)

    async def durable(self, name: str, broker: str, **options: Any) -> motet.Client:
        return await self.connect(name, broker, durable=True, keep=FOR_EVER_S, **options)


def run_motet(*words: str) -> None:
    subprocess.run((sys.executable, "-m", "motet", *words), check=True, stdout=subprocess.DEVNULL)


def free_addresses(count: int) -> list[str]:
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    found = [f"motet://127.0.0.1:{each.getsockname()[1]}" for each in held]
    for each in held:
        each.close()
    return found


async def take(subscription: motet.Subscription, count: int) -> list[motet.Event]:
    return [await anext(subscription) for _ in range(count)]


def plain(events: list[motet.Event]) -> list[list[Any]]:
    return [[event["who"], event["step"]] for event in events]


async def publish(client: motet.Client, first: int, last: int, **options: Any) -> None:
    for step in range(first, last + 1):
        await client.send({"step": step, "who": client.client_id}, **options)
    await client.flush(30.0)


# ── the overlay with everything but cells ────────────────────────────────────────────────


async def write_killed(directory: Path) -> dict[str, Any]:
    at = free_addresses(3)
    text = "\n".join(
        [
            "[overlay]",
            'name = "golden"',
            'root = "B2"',
            "lease_s = 3600",
            f"retention = {RETENTION}",
            "[brokers.B1]",
            f'listen = "{at[0].removeprefix("motet://")}"',
            "[brokers.B2]",
            f'listen = "{at[1].removeprefix("motet://")}"',
            'links = ["B1"]',
            "[brokers.B3]",
            f'listen = "{at[2].removeprefix("motet://")}"',
            'links = ["B2"]',
        ]
    )
    world = World(directory, Topology.parse(text))
    await world.start()
    try:
        told: dict[str, Any] = {"txs": {}, "taken": {}}
        people = await _begin(world, told)
        await _write_sinks(world, told)
        await _decide(world, people, told)
        await _take_snapshot_of_b2(world, people)
        await publish(people["alice"], 11, 15)
        await _leave_open(world, people, told)
        return told
    finally:
        world.kill_all()


async def _begin(world: World, told: dict[str, Any]) -> dict[str, motet.Client]:
    alice = await world.durable("alice", "B1")
    carol = await world.durable("carol", "B3")
    viewer = await world.connect("viewer", "B2")
    await alice.advertise("step > 0", name="steps")
    await alice.advertise("bulk >= 0 and size > 10", name="bulk")
    await carol.advertise("step > 0 and who = 'carol'", name="steps")
    for n in range(4):
        await alice.advertise(f"gone = {n}", name=f"gone-{n}")
    await alice.unadvertise("gone-3")
    await publish(alice, 1, 3)

    # Reads from the beginning, four events, and leaves: its cursors are in the journal.
    billing = await world.durable("billing", "B3")
    orders = await billing.subscribe("step > 0", name="orders", since="beginning")
    await publish(alice, 4, 6)
    await publish(carol, 1, 3)
    told["taken"]["billing"] = plain(await take(orders, 4))
    await publish(alice, 100, 102, best_effort=True)
    await billing.participate()
    # Never reads.
    archive = await world.durable("archive", "B2")
    await archive.subscribe("step > 2 and who = 'alice'", name="from-three", since="beginning")
    await archive.subscribe("step > 0", name="all")
    await archive.subscribe("bulk >= 0", name="old")
    await archive.participate()
    # In total order, one at each end.
    for name, broker in (("total-1", "B1"), ("total-3", "B3")):
        total = await world.durable(name, broker, order="total")
        everything = await total.subscribe("step > 0", name="total")
        await publish(alice, 7 if broker == "B1" else 8, 7 if broker == "B1" else 8)
        told["taken"][name] = plain(await take(everything, 1))
        await total.close()
    live = await viewer.subscribe("step > 0 and who = 'alice'")
    await publish(alice, 9, 10)
    await take(live, 1)
    with suppress(motet.errors.StillOwed):  # it is gone once others have read what it has published
        await alice.unadvertise("gone-1", timeout=1.0)
    await billing.close()
    return {"alice": alice, "carol": carol, "viewer": viewer, "archive": archive}


async def _write_sinks(world: World, told: dict[str, Any]) -> None:
    """Batches of a query: epoch 0 is committed, epoch 1 staged. A write with a key is committed."""
    url = world.addresses["B1"]

    async def staged(job: str, epoch: int, count: int) -> StagedPart:
        async with open_stage(url, Attempt("levels", job, epoch, 0, f"a{epoch}")) as stage:
            await stage.add([encode_event({"level": n, "epoch": epoch}, b"") for n in range(count)])
            return await stage.seal()

    told["sink"] = {
        "committed": await commit(url, "levels", "query", 0, [await staged("query", 0, 5)]),
        "keyed": await commit(url, "levels", "job", None, [await staged("job", 0, 2)], key="once"),
    }
    part = await staged("query", 1, 4)
    told["sink"]["staged"] = {name: getattr(part, name) for name in type(part).__struct_fields__}


async def _decide(world: World, people: dict[str, motet.Client], told: dict[str, Any]) -> None:
    alice, archive = people["alice"], people["archive"]
    txs = told["txs"]
    for n in range(330):  # sealed, if it is enough for two segments
        await alice.send({"bulk": n, "size": 1000}, b"x" * 1000)
    await alice.flush(30.0)
    plan = motet.Plan()
    plan.unsubscribe("archive", "old")
    plan.subscribe("billing", "moved is not null", name="moves")
    plan.advertise("alice", "moved is not null", name="moves")
    plan.publish("alice", {"moved": "x1"})
    await alice.participate()
    with suppress(motet.MotetError):
        bad = motet.Plan()
        bad.unsubscribe("archive", "unheard-of")
        await alice.execute(bad)
    txs["plan"] = await alice.execute(plan, key="move-x1")
    assert await alice.execute(_harmless(), key="move-x1") == txs["plan"]

    agent = await world.connect("agent", "B3")
    hold = asyncio.Event()

    async def take_part(invitation: motet.Invitation, tx: motet.Transaction) -> None:
        task = str(invitation.event["task"])
        if task == "refuse":
            raise RuntimeError("not this one")
        await tx.subscribe(f"step > 0 and task = '{task}'", name=task)
        if task == "wait":
            await hold.wait()

    await agent.participate(take_part)
    await agent.subscribe("task is not null", name="tasks")
    people["agent"] = agent
    dispatcher = await world.durable("dispatcher", "B1")
    people["dispatcher"] = dispatcher
    await dispatcher.advertise("task is not null", name="tasks")
    await dispatcher.subscribe("step > 0", name="mine")
    async with dispatcher.transaction(key="day-1") as tx:
        await tx.invite({"task": "one"})
        await tx.unsubscribe("mine")
        await tx.publish({"task": "begun"})
    txs["serializable"] = tx.id
    async with dispatcher.transaction(isolation="none") as tx:
        await tx.subscribe("step > 3", name="mine-again")
        await tx.publish({"task": "again"})
    txs["not isolated"] = tx.id
    with suppress(RuntimeError):
        async with dispatcher.transaction() as tx:
            txs["aborted"] = tx.id
            await tx.subscribe("step > 4", name="never")
            await tx.publish({"task": "never"})
            raise RuntimeError
    with suppress(motet.errors.InvitationRefused):
        async with dispatcher.transaction() as tx:
            txs["refused"] = tx.id
            await tx.invite({"task": "refuse"})
    for name in ("plan", "serializable", "not isolated", "aborted", "refused"):
        told.setdefault("outcomes", {})[txs[name]] = await archive.outcome(txs[name])


def _harmless() -> motet.Plan:
    plan = motet.Plan()
    plan.publish("alice", {"moved": "twice"})
    return plan


async def _take_snapshot_of_b2(world: World, people: dict[str, motet.Client]) -> None:
    await asyncio.sleep(12.0)  # what is full in the log of B1 is sealed
    world.stop("B2", signal.SIGTERM)
    run_motet("journal", "snapshot", str(world.directory / "B2"))
    await world.start("B2")
    while not all(client.connected for client in people.values()):
        await asyncio.sleep(0.05)


async def _leave_open(world: World, people: dict[str, motet.Client], told: dict[str, Any]) -> None:
    """Everything that a kill can find open."""
    alice, dispatcher = people["alice"], people["dispatcher"]
    txs = told["txs"]
    async with motet.open_log(world.addresses["B1"]) as log:
        (account,) = await log.describe()
        await log.set_cursor("reader", account.last_tick)
    tx = await dispatcher.transaction(timeout=OPEN_S)
    txs["open"] = tx.id
    await tx.subscribe("step > 5", name="tentative")
    await tx.advertise("tentative > 0", name="tentative")
    await tx.unsubscribe("mine-again")
    await tx.publish({"task": "staged"})
    inviting = asyncio.ensure_future(tx.invite({"task": "wait"}))
    await asyncio.sleep(1.0)
    loose = await alice.transaction(timeout=OPEN_S, isolation="none", key="loose")
    txs["open without isolation"] = loose.id
    await loose.unadvertise("gone-2")
    await loose.publish({"step": 1000, "who": "alice"})

    # B3 is away: one plan waits for the part of a client there, another is committed and waits
    # for the cut of its pubend.
    world.stop("B3")
    waiting = motet.Plan()
    waiting.subscribe("billing", "step > 7", name="planned")
    waiting.unadvertise("alice", "gone-0")
    planned = asyncio.ensure_future(alice.execute(waiting, timeout=OPEN_S, key="waits"))
    await asyncio.sleep(0.5)
    archive = people["archive"]
    ended = motet.Plan()
    ended.unsubscribe("archive", "all")
    try:
        await archive.execute(ended, timeout=2.0)
    except motet.errors.StillSpreading as problem:
        txs["committed and not settled"] = problem.tx
    await publish(alice, 16, 18)
    # An operation that waits for the broker that is away.
    opening = asyncio.ensure_future(
        _open(people["viewer"].subscribe("step > 0 and who = 'carol'", timeout=OPEN_S))
    )
    await asyncio.sleep(1.0)
    for name in list(world.processes):
        os.killpg(world.processes[name].pid, signal.SIGSTOP)  # both at one moment
    world.kill_all()
    for task in (inviting, planned, opening):
        task.cancel()
    await asyncio.gather(inviting, planned, opening, return_exceptions=True)


async def _open(opening: Any) -> Any:
    return await opening


# ── the cell ─────────────────────────────────────────────────────────────────────────────


async def write_cell(directory: Path) -> dict[str, Any]:
    at = free_addresses(4)
    places = (
        BrokerPlace("p1", at[0]),
        BrokerPlace("b1", at[1], ("p1",), mates=(("b2", at[2]),)),
        BrokerPlace("s1", at[3], ("b1",)),
    )
    keep = Topology.parse(
        f"[overlay]\nretention = {RETENTION}\n[brokers.B]\nlisten = '127.0.0.1:1'"
    )
    world = World(directory, Topology("cell", places, lease_s=3600.0, retention=keep.retention))
    await world.start()
    try:
        alice = await world.durable("alice", "p1")
        await alice.advertise("step > 0", name="steps")
        middle = await world.durable("middle", "b1")
        await middle.advertise("step > 0 and who = 'middle'", name="steps")
        billing = await world.durable("billing", "s1")
        orders = await billing.subscribe("step > 0", name="orders")
        await publish(alice, 1, 6)
        await publish(middle, 1, 4)
        taken = plain(await take(orders, 3))
        await billing.close()
        await publish(alice, 7, 9)
        return {"taken": {"billing": taken}}
    finally:
        world.kill_all()


# ── the overlay that changes ─────────────────────────────────────────────────────────────


async def write_changed(directory: Path) -> dict[str, Any]:
    at = free_addresses(3)
    places = (
        BrokerPlace("C1", at[0]),
        BrokerPlace("C2", at[1], ("C1",)),
        BrokerPlace("C3", at[2], ("C2",)),
    )
    keep = Topology.parse(
        f"[overlay]\nretention = {RETENTION}\n[brokers.B]\nlisten = '127.0.0.1:1'"
    )
    topology = Topology("changed", places, lease_s=3600.0, retention=keep.retention)
    world = World(directory, topology)
    await world.start()
    try:
        alice = await world.durable("alice", "C1")
        await alice.advertise("step > 0", name="steps")
        bob = await world.durable("bob", "C2")
        everything = await bob.subscribe("step > 0", name="all")
        total = await world.durable("total", "C2", order="total")
        in_order = await total.subscribe("step > 0", name="total")
        dora = await world.connect("dora", "C3")
        await dora.advertise("step > 0 and who = 'dora'")  # its pubend joins the total order
        await publish(dora, 1, 2)
        await publish(alice, 1, 4)
        taken = {"total": plain(await take(in_order, 2)), "bob": plain(await take(everything, 6))}
        await total.close()
        async with await world.connect("guest", "C1") as guest:
            await guest.subscribe("step > 3")
        # A subscription that a transaction ends is read to its end.
        short = await dora.subscribe("step > 2", name="short")
        await publish(alice, 5, 6)
        async with dora.transaction() as tx:
            await tx.unsubscribe(short)
        assert len([event async for event in short]) == 2
        taken["bob"] += plain(await take(everything, 2))
        bob.acknowledge()
        await dora.close()
        await alice.close()
        await asyncio.sleep(1.0)
        # The log is destroyed.
        world.stop("C1", signal.SIGTERM)
        shutil.rmtree(directory / "C1" / "pubend")
        await world.start("C1", options=("--accept-loss",))
        while not bob.connected:
            await asyncio.sleep(0.05)
        alice = await world.durable("alice", "C1")
        await publish(alice, 7, 9)
        async with asyncio.timeout(60):
            taken["bob"] += plain(await take(everything, 1))
        # C3 leaves.
        world.stop("C3", signal.SIGTERM)
        world.topology = Topology(
            "changed", places[:2], lease_s=3600.0, retention=keep.retention, root="C1"
        )
        world.file.write_text(world.topology.to_toml())
        os.kill(world.processes["C2"].pid, signal.SIGHUP)
        while set((await ask_all(world.addresses))["C2"]["links"]) != {"C1"}:
            await asyncio.sleep(0.05)
        shutil.rmtree(directory / "C3")
        await publish(alice, 10, 12)
        return {"taken": taken}
    finally:
        world.kill_all()


# ── what is in them ──────────────────────────────────────────────────────────────────────


def state_of(folder: Path) -> dict[str, Any]:
    """Terms that any later design has: compare `tests/golden/contents.py`."""
    durable, position = read_durable(folder)
    routing = durable.routing.state
    txs = durable.transactions.state
    return {
        "name": durable.config.name,
        "incarnation": durable.config.incarnation,
        "facts": position,
        "now": durable.now,
        "sessions": {
            s.client: {
                "epoch": s.epoch,
                "keep_s": s.keep_s,
                "total_order": s.total_order,
                "cursors": dict(s.cursors),
                "names": {str(n): name for n, name in s.names.items()},
                "since": {str(n): dict(reach) for n, reach in s.since.items()},
                "willing": s.willing,
            }
            for s in durable.sessions
        },
        "subscriptions": sorted(_entries(routing.subscriptions)),
        "advertisements": sorted(_entries(routing.advertisements)),
        "pubends": sorted(routing.pubends),
        "hosted": routing.hosted,
        "floors": dict(durable.floors),
        "starts": {
            _text(op): dict(known)
            for op, known in routing.starts.items()
            if op in routing.subscriptions
        },
        "tentative": sorted(_text(op) for op in routing.tentative),
        "waiting": sorted(_text(op) for op in routing.waits),
        "links": {
            name: {
                "sent": ledger.record.sent,
                "received": ledger.record.received,
                "unacknowledged": len(ledger.outbox),
            }
            for name, ledger in durable.ledgers.items()
        },
        "transactions": {
            "number": txs.number,
            "outcomes": {tx: [o.number, o.committed, o.key] for tx, o in txs.outcomes.items()},
            "parts": {tx: sorted(local.parts) for tx, local in txs.locals.items()},
            "invitations": {
                tx: sorted(i.client for i in local.invitations)
                for tx, local in txs.locals.items()
                if local.invitations
            },
            "coordinated": sorted(txs.coordinations),
            "not settled": sorted(txs.active),
            "opened": sorted(txs.opened),
            "gathered": sorted(txs.gatherings),
        },
        "sinks": {
            name: {"query": s.query, "epoch": s.epoch, "keys": dict(s.keys)}
            for name, s in durable.sinks.state.sinks.items()
        },
    }


def _entries(table: Any) -> list[list[str]]:
    return [[_text(e.id), str(e.filter), e.source.name, e.tx] for e in table]


def _text(op: Any) -> str:
    return f"{op.client}/{op.epoch}/{op.sequence}"


async def logs_of(directory: Path, topology: Topology) -> dict[str, Any]:
    """What the logs hold, as readers see it; from a copy, which goes on and changes."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as copies:
        shutil.copytree(directory, copies, dirs_exist_ok=True)
        async with motet.local(topology, data=copies) as overlay:
            for name in topology.names:
                async with motet.open_log(overlay.address(name)) as log:
                    for account in await log.describe():
                        found[account.pubend] = await _log(log, account)
    return found


async def _log(log: Any, account: Any) -> dict[str, Any]:
    columns = ["tick", "publisher", "epoch", "sequence", "attributes", "payload"]
    rows = []
    async for batch in log.read(pubend=account.pubend, columns=columns):
        for row in batch.rows():
            row["payload"] = len(row["payload"])
            rows.append([row[name] for name in columns])
    outline = await log.outline(account.pubend, every_block=True)
    return {
        "first_tick": account.first_tick,
        "is_sealed": account.sealed_bytes > 0,
        "cursors": {each.name: each.tick for each in account.cursors},
        "transactions": [[step.tx, step.events] for step in outline.steps if step.tx],
        "events": rows,
    }


# ── all of it ────────────────────────────────────────────────────────────────────────────


async def write(directory: Path) -> dict[str, Any]:
    killed, closed, cell, changed = (directory / name for name in WORLDS)
    for each in (killed, cell, changed):
        each.mkdir()
    found: dict[str, Any] = {
        "killed": await write_killed(killed),
        "cell": await write_cell(cell),
        "changed": await write_changed(changed),
    }
    topologies = {world: Topology.load(directory / world / "topology.toml") for world in found}
    for world, topology in topologies.items():
        for leftover in (directory / world).glob("*.stderr"):
            leftover.unlink()
        for lock in (directory / world).rglob("lock"):
            lock.unlink()
        found[world]["topology"] = topology.to_toml()
        (directory / world / "topology.toml").unlink()
        found[world]["state"] = {
            name: state_of(directory / world / name) for name in topology.names
        }
        found[world]["logs"] = await logs_of(directory / world, topology)
    found["written_at"] = time.time()
    shutil.copytree(killed, closed)
    for name in topologies["killed"].names:
        run_motet("journal", "snapshot", str(closed / name))
    for lock in closed.rglob("lock"):
        lock.unlink()
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(write(Path(folder)))
        with tarfile.open(HERE / "folders.tar.xz", "w:xz", preset=9) as archive:
            for world in WORLDS:
                archive.add(Path(folder) / world, world, filter=_anonymous)
    text = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True)
    (HERE / "folders.json").write_text(text + "\n")


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main()
