"""Folders of brokers that commit f894ba4 wrote are read, and overlays go on from them.

`tests/golden/write.py` made them and says what is in them; `tests/golden/folders.json` is what that
commit itself read there. Its facts mean something else today, so brokers that it killed are
refused; they go on after its own `motet journal snapshot`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

import motet
from motet import Client, Topology
from motet.cli.main import run
from motet.client import LocalOverlay
from motet.client.logs.stage import StagedPart, commit
from motet.errors import WrittenByAnotherVersion
from tests.golden.contents import state_of

GOLDEN = Path(__file__).parents[1] / "golden"
TOLD: dict[str, Any] = json.loads((GOLDEN / "folders.json").read_text())
UPGRADED = {
    "closed": ("B1", "B2", "B3"),
    "cell": ("p1", "b1", "s1"),
    "changed": ("C1", "C2"),
}
"""All state is in snapshots, those of `killed` in `closed`."""
KILLED = {"killed": UPGRADED["closed"], "cell": UPGRADED["cell"], "changed": UPGRADED["changed"]}
WORLDS = list(UPGRADED)
ALL = [(world, broker) for world, brokers in UPGRADED.items() for broker in brokers]
SOON_S = 90.0

Step = tuple[object, object]


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders after their writer's `motet journal snapshot`. Nothing may change them."""
    directory = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN / "folders.tar.xz") as archive:
        closed = [each for each in archive if each.name.startswith("closed/")]
        archive.extractall(directory, closed, filter="data")
    with tarfile.open(GOLDEN / "upgraded.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The folders as they were when the brokers were killed."""
    with tarfile.open(GOLDEN / "folders.tar.xz") as archive:
        archive.extractall(tmp_path / "killed", filter="data")
    return tmp_path / "killed"


@pytest.fixture
def folders(untouched: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(untouched, tmp_path / "folders"))


@pytest.fixture
def then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day is that of the writing: no session or log is too old, whenever this runs."""
    real, real_ns = time.time, time.time_ns
    behind_s = real() - TOLD["written_at"]
    monkeypatch.setattr(time, "time", lambda: real() - behind_s)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() - int(behind_s * 1e9))


def told_of(world: str) -> dict[str, Any]:
    """A folder whose journal was replaced by a snapshot holds the same as before."""
    told: dict[str, Any] = TOLD["killed" if world == "closed" else world]
    return told


# ── reading ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("world", "broker"), ALL)
def test_the_state_is_what_its_writer_had(untouched: Path, world: str, broker: str) -> None:
    wanted = told_of(world)["state"][broker]
    found = state_of(untouched / world / broker)
    for part, value in wanted.items():
        assert found[part] == value, part


@pytest.mark.parametrize(("world", "broker"), ALL)
def test_journal_commands_understand_it(
    folders: Path, world: str, broker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(folders / world / broker)
    wanted = told_of(world)["state"][broker]
    assert run(["journal", "verify", folder]) == 0, capsys.readouterr()
    assert "intact" in capsys.readouterr().out
    assert run(["journal", "inspect", folder, "--json", "--facts", "1000"]) == 0
    found = json.loads(capsys.readouterr().out)
    summed = found["broker"]
    assert (summed["name"], summed["facts"]) == (broker, wanted["facts"])
    for what in ("sessions", "advertisements", "subscriptions", "links"):
        count = wanted[what] if what == "links" else len(wanted[what])
        assert summed[what] == count, what
    assert not found["listed"]
    assert found["snapshots"]
    assert run(["journal", "snapshot", folder]) == 0
    assert state_of(Path(folder)) == wanted


@pytest.mark.parametrize(
    ("world", "broker"), [(world, each) for world, brokers in KILLED.items() for each in brokers]
)
def test_facts_of_an_older_release_are_refused_with_the_way_out(
    killed: Path, world: str, broker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = killed / world / broker

    def contents() -> dict[Path, bytes]:
        found = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
        return {path: path.read_bytes() for path in found}

    before = contents()
    with pytest.raises(WrittenByAnotherVersion, match=r"version 6 .* run its `motet journal snap"):
        state_of(folder)
    for command in (["journal", "inspect", str(folder)], ["journal", "snapshot", str(folder)]):
        assert run(command) != 0
        assert "`motet journal snapshot" in capsys.readouterr().err
    assert contents() == before


# ── going on ─────────────────────────────────────────────────────────────────────────────


def overlay_of(world: str, folders: Path) -> Any:
    return motet.local(Topology.parse(told_of(world)["topology"]), data=folders / world)


async def steps(subscription: motet.Subscription, count: int) -> list[Step]:
    async with asyncio.timeout(SOON_S):
        return [(e["who"], e["step"]) for e in [await anext(subscription) for _ in range(count)]]


async def again(overlay: LocalOverlay, name: str, broker: str, **options: Any) -> Client:
    """The next process of a durable client."""
    client = await overlay.connect(name, broker=broker, durable=True, **options)
    assert client.session.resumed, name
    return client


def logged(world: str) -> list[Step]:
    """All that is in the logs, by publisher in the order of publication."""
    rows = [row for log in told_of(world)["logs"].values() for row in log["events"]]
    return [(row[4]["who"], row[4]["step"]) for row in rows if "step" in row[4]]


def by_publisher(seen: list[Step]) -> dict[object, list[object]]:
    found: dict[object, list[object]] = {}
    for who, step in seen:
        found.setdefault(who, []).append(step)
    return found


@pytest.mark.usefixtures("then")
@pytest.mark.parametrize("world", WORLDS)
async def test_logs_hold_the_same_events(folders: Path, world: str) -> None:
    told = told_of(world)
    columns = ["tick", "publisher", "epoch", "sequence", "attributes", "payload"]
    async with overlay_of(world, folders) as overlay:
        for pubend, wanted in told["logs"].items():
            broker = pubend.partition(".")[0]
            async with motet.open_log(overlay.address(broker)) as log:
                (account,) = await log.describe()
                assert account.pubend == pubend
                assert {each.name: each.tick for each in account.cursors} == wanted["cursors"]
                rows: list[list[Any]] = []
                async for batch in log.read(pubend=pubend, columns=columns):
                    rows += [[row[name] for name in columns] for row in batch.rows()]
                outline = await log.outline(pubend, every_block=True)
            for row in rows:
                row[-1] = len(row[-1])
            assert rows[: len(wanted["events"])] == wanted["events"]
            blocks = [[step.tx, step.events] for step in outline.steps if step.tx]
            assert blocks[: len(wanted["transactions"])] == wanted["transactions"]


@pytest.mark.usefixtures("then")
@pytest.mark.parametrize("world", ["closed"])
async def test_durable_clients_find_what_they_had_and_get_what_they_are_owed(
    folders: Path, world: str
) -> None:
    told = told_of(world)
    published = logged(world)
    async with overlay_of(world, folders) as overlay:
        billing = await again(overlay, "billing", "B3")
        names = {(each.kind, each.name, str(each.filter)) for each in billing.registrations}
        assert {
            ("subscribe", "orders", "step > 0"),
            ("subscribe", "moves", "moved is not null"),
        } <= names
        moves = await billing.subscribe("moved is not null", name="moves")
        orders = await billing.subscribe("step > 0", name="orders")
        async with asyncio.timeout(SOON_S):
            assert (await anext(moves))["moved"] == "x1"
        taken = [tuple(each) for each in told["taken"]["billing"]]
        rest = await steps(orders, len(published) - len(taken))
        assert by_publisher(taken + rest) == by_publisher(published)

        archive = await again(overlay, "archive", "B2")
        from_three = await archive.subscribe("step > 2 and who = 'alice'", name="from-three")
        wanted = [(who, step) for who, step in published if who == "alice" and step > 2]
        ended = {each.name for each in archive.registrations} & {"old", "all"}
        others = [asyncio.ensure_future(_all_of(archive, name)) for name in sorted(ended)]
        assert await steps(from_three, len(wanted)) == wanted
        for each in others:
            each.cancel()

        alice = await again(overlay, "alice", "B1")
        assert {"steps", "bulk", "moves"} <= {each.name for each in alice.registrations}
        assert alice.session.published == max(
            row[3] for log in told["logs"].values() for row in log["events"] if row[1] == "alice"
        )
        await alice.send({"step": 19, "who": "alice"})
        await alice.flush(SOON_S)
        assert await steps(orders, 1) == [("alice", 19)]


async def _all_of(client: Client, name: str) -> None:
    """Reads a subscription that a transaction has ended, so that it does not hold the stream."""
    filters = {"old": "bulk >= 0", "all": "step > 0"}
    async for _ in await client.subscribe(filters[name], name=name):
        pass


@pytest.mark.usefixtures("then")
@pytest.mark.parametrize("world", ["closed"])
async def test_clients_in_total_order_go_on_in_one_order(folders: Path, world: str) -> None:
    told = told_of(world)
    published = [step for step in logged(world) if step[0] == "alice"]
    async with overlay_of(world, folders) as overlay:
        seen = []
        for name, broker in (("total-1", "B1"), ("total-3", "B3")):
            client = await again(overlay, name, broker, order="total")
            everything = await client.subscribe("step > 0", name="total")
            ((who, last),) = told["taken"][name]
            wanted = [step for step in published if step[1] > last]
            assert who == "alice"
            seen.append(await steps(everything, len(wanted)))
            assert seen[-1] == wanted
        carol = await again(overlay, "carol", "B3")
        await carol.send({"step": 4, "who": "carol"})


@pytest.mark.usefixtures("then")
@pytest.mark.parametrize("world", ["closed"])
async def test_decided_transactions_stay_and_open_ones_end(folders: Path, world: str) -> None:
    told = told_of(world)
    txs = told["txs"]
    async with overlay_of(world, folders) as overlay:
        asker = await overlay.connect("asker", broker="B3")
        for tx, outcome in told["outcomes"].items():
            assert await asker.outcome(tx) == outcome
        assert await asker.outcome(txs["committed and not settled"]) == "committed"

        # The plan that waited for B3 goes on without anybody's help.
        billing = await again(overlay, "billing", "B3")
        await _until(lambda: "planned" in {each.name for each in billing.registrations})
        # A new process knows nothing of what its predecessor had begun.
        for name, tx in (("dispatcher", "open"), ("alice", "open without isolation")):
            client = await again(overlay, name, "B1")
            async with asyncio.timeout(SOON_S):
                while (outcome := await asker.outcome(txs[tx])) == "in progress":
                    await asyncio.sleep(0.05)
            assert outcome == "aborted"
            names = {each.name for each in client.registrations}
            assert "tentative" not in names
            assert ("mine-again" if name == "dispatcher" else "gone-2") in names
        # Keys are remembered: nothing is done twice.
        alice = client
        plan = motet.Plan()
        plan.publish("alice", {"moved": "twice"})
        assert await alice.execute(plan, key="move-x1", timeout=SOON_S) == txs["plan"]
        assert await alice.execute(plan, key="new", timeout=SOON_S)


async def _until(true: Any) -> None:
    async with asyncio.timeout(SOON_S):
        while not true():
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("then")
@pytest.mark.parametrize("world", ["closed"])
async def test_sinks_go_on_with_what_is_staged(folders: Path, world: str) -> None:
    told = told_of(world)["sink"]
    async with overlay_of(world, folders) as overlay:
        url = overlay.address("B1")
        reader = await overlay.connect("reader", broker="B1")
        levels = await reader.subscribe("level >= 0")
        assert await commit(url, "levels", "query", 0, []) == told["committed"]
        assert await commit(url, "levels", "job", None, [], key="once") == told["keyed"]
        part = StagedPart(**told["staged"])
        await commit(url, "levels", "query", 1, [part])
        async with asyncio.timeout(SOON_S):
            events = [await anext(levels) for _ in range(part.rows)]
        assert [(each["epoch"], each["level"]) for each in events] == [
            (1, n) for n in range(part.rows)
        ]


@pytest.mark.usefixtures("then")
async def test_a_cell_of_an_older_release_continues(folders: Path) -> None:
    published, told = logged("cell"), told_of("cell")
    async with overlay_of("cell", folders) as overlay:
        billing = await again(overlay, "billing", "s1")
        orders = await billing.subscribe("step > 0", name="orders")
        taken = [tuple(each) for each in told["taken"]["billing"]]
        rest = await steps(orders, len(published) - len(taken))
        assert by_publisher(taken + rest) == by_publisher(published)
        middle = await again(overlay, "middle", "b1")
        await middle.send({"step": 5, "who": "middle"})
        assert await steps(orders, 1) == [("middle", 5)]


@pytest.mark.usefixtures("then")
async def test_an_overlay_with_a_destroyed_log_and_a_changed_topology_continues(
    folders: Path,
) -> None:
    published, taken = logged("changed"), told_of("changed")["taken"]["bob"]
    async with overlay_of("changed", folders) as overlay:
        bob = await again(overlay, "bob", "C2")
        everything = await bob.subscribe("step > 0", name="all")
        (_, last) = taken[-1]
        rest = [(who, step) for who, step in published if step >= last]
        found = await steps(everything, len(rest))
        assert found == rest  # the last one was not acknowledged when its broker was killed
        assert bob.session.lost_events <= 1  # once before; again if its broker had not noted that
        async with motet.open_log(overlay.address("C1")) as log:
            (account,) = await log.describe()
        assert account.destroyed_upto > 0
        alice = await again(overlay, "alice", "C1")
        await alice.send({"step": 13, "who": "alice"})
        assert await steps(everything, 1) == [("alice", 13)]
