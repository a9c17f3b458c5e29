"""A small clean history, and every way to spoil it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from motet.audit.files import write_part
from motet.audit.schema import TABLES
from motet.model import encode_event

Row = dict[str, Any]
World = dict[str, list[Row]]
Plant = Callable[[World], None]

READERS = {"sub1": "B1", "sub2": "B2", "tot1": "B1", "tot2": "B2"}
LAST = 1 << 60
HAND_OVER, FIRST, SECOND = "coord/e/5", "iso1/e/5", "iso2/e/5"
"""Transactions: one hands a stream over, the others are isolated."""
BATCH = "counts/query/0"
"""A batch of a sink."""


def clean() -> World:
    """Two publishers at two brokers, readers in publisher and in total order, and transactions."""
    world: World = {table: [] for table in TABLES}
    world["brokers"] = [{"broker": "B1", "is_root": True}, {"broker": "B2", "is_root": False}]
    world["links"] = [{"one": "B1", "other": "B2"}]
    world["logs"] = [{"pubend": "B1.1"}, {"pubend": "B2.1"}]
    for client, broker in {**READERS, "pub1": "B1", "pub2": "B2", "old": "B1", "new": "B2"}.items():
        _session(world, client, broker)
    for client in ("pub3", "coord", "iso1", "iso2"):
        _session(world, client, "B1")
    for client in ("pub1", "pub2", "pub3", "iso1", "iso2"):
        _operation(world, client, 1, "advertise", f"by = '{client}'")
    for client in (*READERS, "old"):
        _subscribe(world, client, 1, "n < 500", 50)
    _subscribe(world, "narrow-minded", 1, "n > 100000", 50)
    _session(world, "narrow-minded", "B1")
    for n in range(1, 11):
        for at, client in enumerate(("pub1", "pub2")):
            _publish(world, client, n, 100 + 2 * n + at, 10.0 + n, [*READERS, "old"])
    _hand_over(world)
    for n, tick in ((11, 141), (12, 143)):
        _publish(world, "pub1", n, tick, 60.0 + n, [*READERS, "new"])
    _isolated(world)
    _batch(world)
    _moves(world)
    _publish(world, "pub1", 13, 190, 120.0, [*READERS, "new"])
    return world


def write(worlds: dict[str, World], folder: Path) -> None:
    """Each as a run of its own, all in one file per table: many small ones take Spark long."""
    for table in TABLES:
        rows = [{**row, "run": run} for run, world in worlds.items() for row in world[table]]
        write_part(folder, table, rows, "planted")


def _session(world: World, client: str, broker: str) -> None:
    world["sessions"].append(
        {"client": client, "epoch": "e", "process": client, "broker": broker, "opened_at": 0.0,
         "total_order": client.startswith("tot"), "lasting": True}
    )  # fmt: skip


def _operation(world: World, client: str, number: int, kind: str, filter: str, **more: Any) -> None:
    world["operations"].append(
        {"op": f"{client}/e/{number}", "client": client, "epoch": "e", "process": client,
         "handle": number, "number": number, "kind": kind, "filter": filter, "position": 0,
         "ended_position": LAST, "doubted_position": LAST, "requested_at": 1.0,
         "answered_at": 2.0, "answer": "Done", "effective_at": 2.0, "lasting": True, **more}
    )  # fmt: skip


def _subscribe(
    world: World, client: str, number: int, filter: str, start: int, **more: Any
) -> None:
    _operation(world, client, number, "subscribe", filter, **more)
    for pubend in ("B1.1", "B2.1"):
        place = {"op": f"{client}/e/{number}", "pubend": pubend}
        world["starts"].append({**place, "first": start, "tick": start})


def _publish(
    world: World, client: str, n: int, tick: int, at: float, readers: list[str], tx: str = ""
) -> None:
    pubend = "B2.1" if client == "pub2" else "B1.1"
    body = encode_event({"by": client, "n": n}, b"")
    whose = {"client": client, "epoch": "e", "number": n, "tx": tx, "body": body}
    world["events"].append(
        {**whose, "position": n, "last_position": n, "sent_at": at, "settled_at": at + 0.1,
         "fate": "accepted", "is_sure": True}
    )  # fmt: skip
    world["logged"].append({**whose, "pubend": pubend, "tick": tick})
    for reader in readers:
        deliver(world, reader, client, n, pubend, tick, at + 0.2)


def deliver(
    world: World, reader: str, publisher: str, n: int, pubend: str, tick: int, at: float
) -> Row:
    name, _, number = reader.partition("/")
    nth = len(world["deliveries"])
    row = {"process": name, "handle": int(number or 1), "op": f"{name}/e/{number or 1}", "nth": nth,
           "at": at, "publisher": publisher, "number": n, "pubend": pubend, "tick": tick,
           "came": True, "taken": True}  # fmt: skip
    world["deliveries"].append(row)
    return row


def _deal(world: World, tx: str, kind: str, number: int, at: float, **more: Any) -> None:
    client = tx.partition("/")[0]
    world["transactions"].append(
        {"tx": tx, "kind": kind, "client": client, "epoch": "e", "at": at, "commit_at": at + 1,
         "answered_at": at + 4, "outcome": "committed", **more}
    )  # fmt: skip
    said = {"tx": tx, "who": client, "outcome": "committed", "number": number}
    world["words"].append({**said, "at": at + 4, "asked_at": at + 1})


def _deed(
    world: World, tx: str, place: str, client: str, kind: str, at: float, **more: Any
) -> None:
    world["deeds"].append(
        {"tx": tx, "place": place, "kind": kind, "client": client, "epoch": "e", "at": at,
         "number": -len(world["deeds"]) - 1, "answer": "Done", "stays": True, **more}
    )  # fmt: skip
    hearer = {"tx": tx, "client": client, "epoch": "e"}
    if hearer not in world["hearers"]:
        world["hearers"].append(hearer)


def _cut(world: World, tx: str, number: int, pubend: str, tick: int, last: int, at: float) -> None:
    place = {"pubend": pubend, "tick": tick, "last": last}
    world["cuts"].append({**place, "tx": tx, "number": number, "at": at})


def _hand_over(world: World) -> None:
    """Two events of pub1 and one of pub3, which old still gets; then their streams are new's."""
    _deal(world, HAND_OVER, "static", 1, 40.0)
    for at, n in enumerate((101, 102)):
        place = f"000{at}"
        _deed(world, HAND_OVER, place, "pub1", "publish", 40.0, event=n, is_planned=True)
        _publish(world, "pub1", n, 132 + at, 42.0, [*READERS, "old"], HAND_OVER)
    # Another one may have the same number: what a plan publishes is numbered by ticks.
    _deed(world, HAND_OVER, "00011", "pub3", "publish", 40.0, event=101, is_planned=True)
    _publish(world, "pub3", 101, 134, 42.0, [*READERS, "old"], HAND_OVER)
    old = next(row for row in world["operations"] if row["op"] == "old/e/1")
    old |= {"is_gone": True, "lasting": False, "ended_at": 42.0, "finished_at": 45.0}
    _deed(world, HAND_OVER, "0002", "old", "unsubscribe", 40.0, op="old/e/1", is_planned=True)
    begun = {"tx": HAND_OVER, "requested_at": 40.0, "answered_at": 44.0, "effective_at": 44.0}
    _subscribe(world, "new", 1, "n < 500", 134, **begun)
    _deed(world, HAND_OVER, "0003", "new", "subscribe", 40.0, op="new/e/1", is_planned=True)
    for pubend, tick, last in (("B1.1", 131, 134), ("B2.1", 132, 132)):
        _cut(world, HAND_OVER, 1, pubend, tick, last, 42.0)
    world["before"].append({"tx": HAND_OVER, "first": "0000", "then": "0001"})


def _isolated(world: World) -> None:
    """Each publishes an event and begins a subscription that would get the other's."""
    for tx, number, at, cut in ((FIRST, 2, 80.0, 160), (SECOND, 3, 90.0, 170)):
        client, n = tx.partition("/")[0], 200 + number
        readers = [*READERS, "new", *(["iso1/2"] if tx == SECOND else [])]
        _deal(world, tx, "isolated", number, at, key=f"key {number}")
        _deed(world, tx, "0", client, "publish", at, event=n)
        _cut(world, tx, number, "B1.1", cut, cut + 1, at + 2)
        _publish(world, client, n, cut + 1, at + 2, readers, tx)
        begun = {"tx": tx, "requested_at": at, "answered_at": at, "effective_at": at + 3}
        _subscribe(world, client, 2, "n > 200 and n < 300", cut + 1, **begun)
        _deed(world, tx, "1", client, "subscribe", at, op=f"{client}/e/2")


def _batch(world: World) -> None:
    """Three events of a sink, of which only a broker tells."""
    _cut(world, BATCH, 0, "B1.1", 180, 183, 110.0)
    for tick in (181, 182, 183):
        whose = {"client": "counts", "epoch": "", "number": tick, "tx": BATCH}
        body = encode_event({"n": tick + 120}, b"")
        world["logged"].append({**whose, "pubend": "B1.1", "tick": tick, "body": body})
        for reader in (*READERS, "new"):
            deliver(world, reader, "counts", tick, "B1.1", tick, 110.2)


def _moves(world: World) -> None:
    """One client goes to B2 and back again, is refused, and is moved by an operator then. Brokers
    start before, and B2 starts again in between."""
    for broker, at in (("B1", 0.0), ("B2", 0.0), ("B2", 55.0)):
        world["lives"].append({"broker": broker, "at": at})
    _session(world, "mover", "B1")
    for number, source, to, at in ((1, "B1", "B2", 50.0), (2, "B2", "B1", 60.0)):
        _move(world, number, source, to, at)
    _move(world, 3, "B1", "B2", 70.0, answer="MoveRefused", broker="B1", text="B2 is full")
    _stay(world, 0, "B1", "opened", 0.0)
    _stay(world, 0, "B1", "left", 50.1, to="B2")
    _stay(world, 1, "B2", "came", 50.2)
    _stay(world, 1, "B2", "found", 55.0)
    _stay(world, 1, "B2", "left", 60.1, to="B1")
    _stay(world, 2, "B1", "came", 60.2)
    _stay(world, 2, "B1", "left", 70.2, to="B2", is_ordered=True)
    _stay(world, 3, "B2", "came", 70.3)
    _stay(world, 3, "B2", "kept", 130.0)
    for process, broker, began, ended in (("r1", "B1", 1.0, 50.05), ("r2", "B2", 50.3, 60.05)):
        run = {"client": "mover", "broker": broker, "process": process}
        world["runs"].append({**run, "what": "began", "at": began})
        world["runs"].append({**run, "what": "ended", "at": ended})


def _move(world: World, number: int, source: str, to: str, at: float, **more: Any) -> None:
    world["moves"].append(
        {"client": "mover", "epoch": "e", "process": "mover", "number": number, "source": source,
         "to": to, "at": at, "answered_at": at + 0.4, "answer": "Done", "answers": 1, "broker": to,
         **more}
    )  # fmt: skip


def _stay(world: World, number: int, broker: str, what: str, at: float, **more: Any) -> None:
    place = {"client": "mover", "epoch": "e", "broker": broker, "number": number}
    world["stays"].append({**place, "what": what, "at": at, **more})


# ── spoiling it ──────────────────────────────────────────────────────────────────────────


def _came(world: World, reader: str, publisher: str, n: int) -> Row:
    return next(
        row
        for row in world["deliveries"]
        if (row["process"], row["publisher"], row["number"]) == (reader, publisher, n)
    )


def _without(reader: str, publisher: str, n: int) -> Plant:
    return lambda world: world["deliveries"].remove(_came(world, reader, publisher, n))


def _swap(reader: str, one: tuple[str, int], other: tuple[str, int]) -> Plant:
    def plant(world: World) -> None:
        first, then = _came(world, reader, *one), _came(world, reader, *other)
        first["nth"], then["nth"] = then["nth"], first["nth"]

    return plant


def _change(table: str, where: Row, **values: Any) -> Plant:
    def plant(world: World) -> None:
        found = [row for row in world[table] if where.items() <= row.items()]
        assert found, (table, where)
        for row in found:
            row |= values

    return plant


def _add(table: str, **row: Any) -> Plant:
    return lambda world: world[table].append(row)


def _again(world: World) -> None:
    world["deliveries"].append({**_came(world, "sub1", "pub1", 3), "nth": 10_000})


def _done_twice(world: World) -> None:
    _change("sessions", {"client": "sub1"}, own_cursors=True)(world)
    _again(world)


def _subscribed_again(world: World, start: int = 110, ends: dict[str, int] | None = None) -> None:
    """The client of the old side stores its own cursors, and subscribes again before the logs cut
    for the hand-over. It gets the events between tick 110 and the cuts for both subscriptions."""
    _change("sessions", {"client": "old"}, own_cursors=True)(world)
    asked = {"requested_at": 14.0, "answered_at": 20.5, "effective_at": 20.5}
    _subscribe(world, "old", 2, "n < 500", start, **asked)
    for row in sorted(world["logged"], key=lambda row: row["tick"]):
        if row["tick"] > 110:
            place = row["client"], row["number"], row["pubend"], row["tick"]
            deliver(world, "old/2", *place, 130.0)
    for pubend, tick in (ends or {"B1.1": 134, "B2.1": 132}).items():
        world["ends"].append({"op": "old/e/1", "pubend": pubend, "tick": tick})


def _logged_twice(world: World) -> None:
    row = next(row for row in world["logged"] if (row["client"], row["number"]) == ("pub1", 3))
    world["logged"].append({**row, "tick": 129})


def _foreign(world: World) -> None:
    for table in ("events", "logged"):
        where = {"client": "pub1", "number": 12}
        _change(table, where, body=encode_event({"by": "another", "n": 12}, b""))(world)


def _refused(world: World) -> None:
    _change("events", {"client": "pub1", "number": 12}, fate="refused")(world)
    for table in ("logged", "deliveries"):
        world[table] = [row for row in world[table] if (row["number"], row["tick"]) != (12, 143)]


def _log_order(world: World) -> None:
    """The log has two events of one publisher the wrong way round, and so they come."""
    for table in ("logged", "deliveries"):
        who = "client" if table == "logged" else "publisher"
        for row in world[table]:
            if row[who] == "pub1" and row["number"] in (3, 4):
                row["number"] = 7 - row["number"]


def _never_published(world: World) -> None:
    for table in ("logged", "deliveries"):
        world[table] = [row for row in world[table] if row["number"] != 102]


def _abort(world: World) -> None:
    _change("transactions", {"tx": SECOND}, outcome="aborted")(world)


def _other_numbers(world: World) -> None:
    _change("cuts", {"tx": FIRST}, number=3)(world)
    _change("cuts", {"tx": SECOND}, number=2)(world)
    world["words"] = [row for row in world["words"] if row["tx"] == HAND_OVER]


def _untold(world: World) -> None:
    world["hearers"].remove({"tx": HAND_OVER, "client": "old", "epoch": "e"})


def _circle(world: World) -> None:
    """The second one's subscription gets the first one's event, too."""
    deliver(world, "iso2/2", "iso1", 202, "B1.1", 161, 99.0)


def _word(outcome: str, number: int = 0) -> Plant:
    said = {"tx": FIRST, "who": "iso1", "outcome": outcome, "number": number}
    return _add("words", **said, at=120.0, asked_at=119.0)


def _came_too(reader: str, publisher: str, n: int, tick: int) -> Plant:
    def plant(world: World) -> None:
        deliver(world, reader, publisher, n, "B1.1", tick, 99.0)

    return plant


PLANTS: dict[str, tuple[str, Plant]] = {
    "lost": ("exactly-once", _without("sub1", "pub2", 10)),
    "gap": ("exactly-once", _without("sub1", "pub1", 5)),
    "false loss": ("exactly-once", _add("losses", process="sub1", pubend="B1.1", first=1, last=9)),
    "doubled": ("duplicates", _again),
    "logged twice": ("duplicates", _logged_twice),
    "done twice": ("duplicates", _done_twice),
    "invented": ("soundness", _came_too("sub1", "pub1", 999, 142)),
    "unrequested": ("soundness", _change("deliveries", {"process": "sub1", "tick": 104}, op="")),
    "misrouted": ("soundness", _came_too("narrow-minded", "pub1", 12, 143)),
    "unpublished": ("soundness", _change("events", {"client": "pub1", "number": 12}, fate="void")),
    "early": ("soundness", _change("operations", {"op": "sub1/e/1"}, requested_at=30.0)),
    "refused": ("soundness", _refused),
    "accepted": ("soundness", _foreign),
    "tick order": ("order", _swap("sub1", ("pub1", 4), ("pub1", 6))),
    "publisher order": ("order", _log_order),
    "another event": ("order", _change("deliveries", {"process": "sub1", "tick": 104}, number=4)),
    "inverted": ("total-order", _swap("tot1", ("pub1", 4), ("pub2", 4))),
    "disagreement": ("total-order", _swap("tot2", ("pub1", 7), ("pub2", 7))),
    "torn": ("exactly-once", _without("sub1", "pub1", 102)),
    "two outcomes": ("atomicity", _word("aborted")),
    "two numbers": ("atomicity", _word("committed", 9)),
    "still running": ("atomicity", _word("in progress")),
    "forgotten": ("atomicity", _word("expired")),
    "key used twice": (
        "atomicity",
        _change("transactions", {"kind": "isolated"}, client="iso1", key="key 2"),
    ),
    "partly published": ("atomicity", _never_published),
    "published though aborted": ("atomicity", _abort),
    "cut though aborted": ("atomicity", _abort),
    "untold": ("atomicity", _untold),
    "before the commit": ("visibility", _change("transactions", {"tx": SECOND}, commit_at=99.0)),
    "of an aborted one": ("visibility", _abort),
    "before the cut": ("visibility", _change("cuts", {"tx": SECOND}, at=99.0)),
    "two cuts": (
        "transaction-order",
        _add("cuts", tx=FIRST, number=2, pubend="B1.1", tick=165, last=165, at=90.0),
    ),
    "numbers differ": (
        "transaction-order",
        _add("cuts", tx=FIRST, number=7, pubend="B2.1", tick=165, last=165, at=90.0),
    ),
    "cuts swapped": ("transaction-order", _other_numbers),
    "block torn": ("transaction-order", _change("cuts", {"tx": FIRST}, tick=158)),
    "against the plan": (
        "transaction-order",
        _add("before", tx=HAND_OVER, first="0001", then="0000"),
    ),
    "against its order": ("transaction-order", _came_too("new", "pub1", 101, 132)),
    "missing in its order": ("transaction-order", _without("old", "pub1", 101)),
    "both sides": ("handover", _came_too("old", "pub1", 11, 141)),
    "circle": ("serializability", _circle),
}
"""By kind of violation: the guarantee that it breaks, and how to plant one."""


def _row_gone(world: World) -> None:
    """One row of three is missing, and no reader has seen it."""
    for table, publisher in (("logged", "client"), ("deliveries", "publisher")):
        world[table] = [
            row for row in world[table] if (row[publisher], row["number"]) != ("counts", 182)
        ]


BATCH_PLANTS: dict[str, tuple[str, Plant]] = {
    "block not whole": ("atomicity", _row_gone),
    "before the cut": ("visibility", _change("cuts", {"tx": BATCH}, at=120.0)),
    "torn": ("exactly-once", _without("sub1", "counts", 182)),
}
"""What can be wrong with a batch of a sink, and nothing else is then."""


def _never_there(world: World) -> None:
    """B2 never had the session that its client was told to be there."""
    world["stays"] = [row for row in world["stays"] if row["number"] < 1]
    _stay(world, 0, "B2", "opened", 0.0, client="another")
    world["moves"] = world["moves"][:1]
    world["lives"] = world["lives"][:2]


MOVE_PLANTS: dict[str, Plant] = {
    "never answered": _change("moves", {"number": 2}, answer="", answers=0, broker=""),
    "answered twice": _change("moves", {"number": 3}, answers=2),
    "done elsewhere": _change("moves", {"number": 2}, broker="B2"),
    "never there": _never_there,
    "refused and moved": _change("stays", {"number": 2, "what": "left"}, is_ordered=False),
    "two copies": _add(
        "stays", client="mover", epoch="e", broker="B1", number=1, what="came", at=50.3
    ),
    "decided twice": _add(
        "stays", client="mover", epoch="e", broker="B1", number=0, what="left", to="B3", at=50.1
    ),
    "arrived elsewhere": _change("stays", {"number": 0, "what": "left"}, to="B3"),
    "two running copies": _add(
        "runs", client="mover", broker="B1", process="r3", what="began", at=55.0
    ),
    "at two brokers": _add(
        "stays", client="mover", epoch="e", broker="B1", number=0, what="kept", at=51.0
    ),
}
"""What can be wrong with moves."""


LATE_CUTS: dict[str, tuple[set[str], Plant]] = {
    "both owed": (set(), _subscribed_again),
    "cut before": (
        {"done twice"},
        lambda world: _subscribed_again(world, ends={"B1.1": 119, "B2.1": 132}),
    ),
    "no cut": ({"done twice"}, lambda world: _subscribed_again(world, ends={"B2.1": 132})),
    "started later": ({"done twice"}, lambda world: _subscribed_again(world, start=120)),
}
"""By case of a client that subscribes again before a cut: the kinds of violations in it."""


def spoilt(plant: Plant) -> World:
    world = deepcopy(clean())
    plant(world)
    return world


# ── order across topics ──────────────────────────────────────────────────────────────────

PUBLICATIONS = ("t1 a", "u1 b", "t2 b", "u2 a", "t3 a", "u3 b", "t4 b", "u4 a")
"""Events in the order of their numbers, and who has published each. Everybody knew all before."""
SEEN_BY = {"a.1.1": "a", "b.1.1": "b", "r.1.1": "r"}


def clean_order() -> World:
    """Two topics at one site, two publishers, three streams; one of them has dropped `t`."""
    world: World = {table: [] for table in TABLES}
    world["order_topics"] += [
        {"site": "S1", "topic": topic, "id": id} for id, topic in enumerate("tu")
    ]
    for stream, client in SEEN_BY.items():
        _stream(world, stream, client, "tu")
    for at, words in enumerate(PUBLICATIONS, 1):
        name, client = words.split()
        publish_ordered(world, name, client, float(at))
        for stream in SEEN_BY:
            give(world, stream, name, float(at))
    world["order_cuts"].append(_step(world, "r.1.1", "t0", what="dropped"))
    return world


def _stream(world: World, stream: str, client: str, topics: str, former: str = "") -> None:
    place = {"stream": stream, "client": client, "former": former}
    world["order_streams"].append({**place, "mode": "causal", "at": 0.0})
    for topic in topics:
        world["order_cuts"].append(_step(world, stream, f"{topic}0", what="cut"))


def _step(world: World, stream: str, name: str, **more: Any) -> Row:
    tables = ("order_cuts", "order_given", "order_lost")
    nth = sum(row["stream"] == stream for table in tables for row in world[table])
    return {"stream": stream, "nth": nth, "topic": name[0], "number": int(name[1:]), **more}


def publish_ordered(
    world: World, name: str, client: str, at: float, *, receipt: bool = True
) -> Row:
    nth = 1 + sum(row["client"] == client for row in world["order_published"])
    place = {"topic": name[0], "number": int(name[1:]), "at": at, "client": client}
    row = {**place, "nth": nth, "digest": int(at)}
    world["order_published"].append(row)
    world["order_numbers"].append(
        {**place, "site": "S1", "request": nth, "entries": [], "nth": int(at)}
    )
    if receipt:
        world["order_receipts"].append({**place, "nth": nth, "outcome": "published"})
    return row


def give(world: World, stream: str, name: str, at: float, **more: Any) -> Row:
    client = stream.partition(".")[0]
    known = sum(row["client"] == client for row in world["order_published"])
    row = _step(world, stream, name, client=client, known=known, digest=int(at), at=at, **more)
    world["order_given"].append(row)
    return row


def _given(world: World, stream: str, name: str) -> Row:
    return next(
        row
        for row in world["order_given"]
        if (row["stream"], row["topic"], row["number"]) == (stream, name[0], int(name[1:]))
    )


def _swapped(world: World, stream: str, one: str, other: str) -> None:
    first, second = _given(world, stream, one), _given(world, stream, other)
    first["nth"], second["nth"] = second["nth"], first["nth"]


def _twice(world: World) -> None:
    give(world, "a.1.1", "t2", 3.0)


def _back(world: World) -> None:
    _swapped(world, "r.1.1", "t3", "t4")


def _unrelated(world: World) -> None:
    """Two events whose publishers did not know of each other."""
    publish_ordered(world, "t5", "x", 20.0)
    publish_ordered(world, "u5", "y", 21.0)
    for stream, names in {"a.1.1": ("t5", "u5"), "b.1.1": ("u5", "t5")}.items():
        for name in names:
            give(world, stream, name, 20.0 if name == "t5" else 21.0)


def _effect_first(world: World) -> None:
    """At one stream only, so that no two streams disagree."""
    publish_ordered(world, "v1", "a", 20.0)
    world["order_given"].append({**give(world, "b.1.1", "v1", 20.0), "stream": "b.9.1"})
    publish_ordered(world, "w1", "b", 21.0)
    _stream(world, "late.1.1", "late", "vw")
    give(world, "late.1.1", "w1", 21.0)
    give(world, "late.1.1", "v1", 20.0)
    for stream in ("b.1.1", "b.9.1"):  # and they have that topic
        world["order_cuts"].append(
            {"stream": stream, "nth": -1, "topic": "v", "number": 0, "what": "cut"}
        )


def _in_a_circle(world: World) -> None:
    for at, (name, client) in enumerate((("x1", "x"), ("y1", "y"), ("z1", "z"))):
        publish_ordered(world, name, client, 20.0 + at)
    for number, pair in enumerate((("x1", "y1"), ("y1", "z1"), ("z1", "x1"))):
        stream = f"reader{number}.1.1"
        _stream(world, stream, f"reader{number}", f"{pair[0][0]}{pair[1][0]}")
        for name in pair:
            give(world, stream, name, 20.0 + "xyz".index(name[0]))


def _another_event(world: World) -> None:
    _given(world, "r.1.1", "t3")["digest"] = 77


def _two_requests(world: World) -> None:
    row = world["order_numbers"][0]
    world["order_numbers"].append({**row, "client": "another"})


def _two_numbers(world: World) -> None:
    row = world["order_numbers"][0]
    world["order_numbers"].append({**row, "number": 50, "at": 30.0})


def _wrong_receipt(world: World) -> None:
    receipt = world["order_receipts"][-1]
    receipt["number"] = 1


def _two_ids(world: World) -> None:
    world["order_topics"].append({"site": "S1", "topic": "t", "id": 4})


def _two_names(world: World) -> None:
    world["order_topics"].append({"site": "S1", "topic": "w", "id": 1})


def _never_given(world: World) -> None:
    world["order_given"].remove(_given(world, "r.1.1", "u2"))


def _not_asked_for(world: World) -> None:
    publish_ordered(world, "t5", "a", 20.0)
    give(world, "r.1.1", "t5", 20.0)


def _from_before(world: World) -> None:
    cut = next(row for row in world["order_cuts"] if row["stream"] == "b.1.1")
    cut["number"] = 2


ORDER_PLANTS: dict[str, tuple[str, Plant]] = {
    "given twice": ("notification-order", _twice),
    "number back": ("notification-order causality", _back),
    "disagreement": ("notification-order causality", _unrelated),
    "effect before cause": ("causality", _effect_first),
    "circle": ("causality", _in_a_circle),
    "two events": ("numbers", _another_event),
    "two requests": ("numbers", _two_requests),
    "two numbers": ("numbers", _two_numbers),
    "wrong receipt": ("numbers", _wrong_receipt),
    "two ids": ("numbers", _two_ids),
    "two names": ("numbers", _two_names),
    "not given": ("completeness", _never_given),
    "without the topic": ("completeness", _not_asked_for),
    "below its cut": ("completeness", _from_before),
}
"""By kind: the guarantees that it breaks, and how it is planted."""


def _forgotten_in_between(world: World) -> None:
    _two_numbers(world)
    world["order_forgotten"].append({"site": "S1", "client": "a", "at": 10.0})


def _told_of_a_loss(world: World) -> None:
    _never_given(world)
    world["order_lost"].append(_step(world, "r.1.1", "u2"))


def _tagged(world: World) -> None:
    row = _given(world, "r.1.1", "u2")
    row["is_late"] = True
    row["nth"] = 99
    drop = next(row for row in world["order_cuts"] if row["what"] == "dropped")
    drop["nth"] = 100


def _after_a_gap(world: World) -> None:
    """What came tagged in the gap counts for the stream that has joined anew."""
    _stream(world, "r.1.2", "r", "u", former="r.1.1")
    publish_ordered(world, "u5", "a", 20.0)
    publish_ordered(world, "u6", "a", 21.0)
    next(row for row in world["order_cuts"] if row["stream"] == "r.1.2")["number"] = 4
    give(world, "r.1.1", "u5", 20.0, is_late=True)
    give(world, "r.1.2", "u6", 21.0)


def _void(world: World) -> None:
    """A number that nobody has is passed."""
    publish_ordered(world, "u6", "a", 21.0)
    for stream in SEEN_BY:
        give(world, stream, "u6", 21.0)


ORDER_EXCUSES: dict[str, Plant] = {
    "a repeated request of a forgotten client": _forgotten_in_between,
    "a loss that was told": _told_of_a_loss,
    "a tagged event": _tagged,
    "a gap": _after_a_gap,
    "a void number": _void,
}
"""Nothing is wrong with these."""


def spoilt_order(plant: Plant) -> World:
    world = clean_order()
    plant(world)
    return world
