"""The synchronous facade: scripts, threads, interrupts."""

from __future__ import annotations

import inspect
import os
import re
import signal
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import motet
from motet.client.driver import ClientSession
from motet.client.logs.stage import Stage, SyncStage
from motet.errors import (
    AddressError,
    ClosedError,
    Disconnected,
    Fenced,
    FilterError,
    MisuseError,
    NoAnswer,
    NotAdvertised,
    NotEffective,
)
from tests.processes import printed_by
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture(scope="module")
def overlay() -> Iterator[motet.client.sync.SyncOverlay]:
    with motet.local_sync(2) as overlay:
        yield overlay


@pytest.fixture
def alice(overlay: motet.client.sync.SyncOverlay) -> Iterator[motet.client.sync.SyncClient]:
    with overlay.connect("alice", broker="B1") as client:
        client.advertise("step > 0")
        yield client


@pytest.fixture
def bob(overlay: motet.client.sync.SyncOverlay) -> Iterator[motet.client.sync.SyncClient]:
    with overlay.connect("bob", broker="B2") as client:
        yield client


def test_events_and_flags_of_wrong_types(alice: motet.client.sync.SyncClient) -> None:
    wrong: Any = 5
    for many in (alice.send_many, alice.publish_many):
        with pytest.raises(MisuseError, match="takes an iterable of events"):
            many(wrong)
    for verb in (alice.send, alice.publish, alice.send_nowait):
        with pytest.raises(MisuseError, match="`best_effort` is True or False"):
            verb({"step": 1}, best_effort=wrong)


def test_the_verbs(alice: motet.client.sync.SyncClient, bob: motet.client.sync.SyncClient) -> None:
    with bob.subscribe("step > 1") as subscription:
        alice.send({"step": 1})
        receipt = alice.send({"step": 2}, payload=b"two")
        receipt.wait(timeout=PATIENCE_S)
        event = subscription.get(timeout=PATIENCE_S)
        assert (event["step"], event.payload, event.publisher) == (2, b"two", "alice")
        with pytest.raises(TimeoutError):
            subscription.get(timeout=0.01)
        alice.send_many({"step": step} for step in range(3, 6))
        wait_until(lambda: subscription.buffered == 3)
        assert [e["step"] for e in subscription.events(timeout=0.01)] == [3, 4, 5]
    with pytest.raises(ClosedError):
        subscription.get()
    assert list(subscription) == []
    assert bob.status()["broker"] == bob.broker == "B2"
    assert (alice.client_id, alice.session.lost_sessions) == ("alice", 0)
    assert alice.session.epoch.startswith("B1-")


def test_the_session_can_be_read_from_any_thread_also_after_the_end() -> None:
    with motet.local_sync(brokers=1) as overlay:
        with overlay.connect("alice") as alice:
            alice.advertise("step > 0")
            subscription = alice.subscribe("step > 0")
            alice.publish({"step": 1}, best_effort=True)
            subscription.get(timeout=PATIENCE_S)
            assert (alice.session.published, alice.session.unsettled) == (1, 0)
            assert not alice.session.resumed
            assert dict(alice.session.cursors) == dict(subscription.cursors)
        before = alice.session.cursors, subscription.cursors
    assert (alice.session.cursors, subscription.cursors) == before


def test_refusals(alice: motet.client.sync.SyncClient) -> None:
    with pytest.raises(NotAdvertised):
        alice.publish({"step": 0}, timeout=PATIENCE_S)
    alice.send({"step": -1})
    with pytest.raises(NotAdvertised, match="2 of 2"):
        alice.flush(timeout=PATIENCE_S)
    with pytest.raises(FilterError):
        alice.subscribe("step >")
    with pytest.raises(MisuseError):
        alice.send("text")  # type: ignore[arg-type]
    with pytest.raises(MisuseError):
        alice.subscribe("step > 1", callback=7)  # type: ignore[arg-type]


def test_publish_waits_no_longer_than_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motet.client.sync.client.DEFAULT_WINDOW", 2)
    with motet.local_sync(1) as overlay, overlay.connect("alice", window=1) as alice:
        alice.advertise("step > 0")
        alice.publish({"step": 1}, timeout=PATIENCE_S)
        overlay.stop_broker("B1")
        receipt = alice.send({"step": 2})
        with pytest.raises(NoAnswer, match=r"not accepted within 0.01 s; it may still"):
            receipt.wait(timeout=0.01)
        for step in range(3, 6):
            with pytest.raises(TimeoutError, match=r"not accepted within 0.01 s"):
                alice.publish({"step": step}, timeout=0.01)
        with pytest.raises(NoAnswer, match=r"not sent within 0.01 s"):
            alice.publish({"step": 6}, timeout=0.01)
        with pytest.raises(MisuseError, match="number of seconds"):
            alice.publish({"step": 7}, timeout=-1)
        with pytest.raises(NoAnswer, match="4 publications were not settled"):
            alice.flush(timeout=0.01)
        alice.close(timeout=0.01)


def test_each_verb_takes_its_own_kind(alice: motet.client.sync.SyncClient) -> None:
    subscription, advertisement = alice.subscribe("step > 1"), alice.advertise("x = 1")
    assert not hasattr(subscription, "unadvertise")
    with pytest.raises(MisuseError, match="SyncAdvertisement"):
        alice.unadvertise(subscription)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="SyncSubscription"):
        alice.unsubscribe(advertisement)  # type: ignore[arg-type]
    alice.unsubscribe(subscription, wait="local")
    alice.unadvertise(advertisement)
    assert not subscription.active
    assert not advertisement.active


def test_a_bad_unsubscribe_may_be_repeated(alice: motet.client.sync.SyncClient) -> None:
    before = alice.status()["tables"]["subscriptions"]
    subscription = alice.subscribe("step > 1")
    with pytest.raises(MisuseError):
        subscription.unsubscribe(wait="bogus")  # type: ignore[arg-type]
    assert subscription.active
    subscription.unsubscribe()
    subscription.unsubscribe()
    assert alice.status(timeout=PATIENCE_S)["tables"]["subscriptions"] == before


PAIRS: list[tuple[type, type]] = [
    (motet.Client, motet.client.sync.SyncClient),
    (ClientSession, motet.client.sync.SyncSession),
    (motet.Subscription, motet.client.sync.SyncSubscription),
    (motet.client.Advertisement, motet.client.sync.SyncAdvertisement),
    (motet.client.Receipt, motet.client.sync.SyncReceipt),
    (motet.Transaction, motet.client.sync.SyncTransaction),
    (motet.client.Role, motet.client.sync.SyncRole),
    (motet.client.LocalOverlay, motet.client.sync.SyncOverlay),
    (motet.client.logs.LogReader, motet.client.logs.SyncLogReader),
    (Stage, SyncStage),
]
FUNCTIONS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (motet.connect, motet.connect_sync),
    (motet.local, motet.local_sync),
    (motet.open_log, motet.open_log_sync),
    (motet.read, motet.read_sync),
]
OF_REGISTRATIONS = {"begins_in", "chosen_name", "ends_in", "handle", "leaving"}
"""For other modules of the client."""
LACKING: dict[type, set[str]] = {
    motet.client.Advertisement: OF_REGISTRATIONS,
    motet.Subscription: OF_REGISTRATIONS | {"ack"},  # for `event.ack()`
    motet.Transaction: {"outcome"},  # a future of the event loop; `committed` tells it
    motet.client.LocalOverlay: {"drivers", "start"},  # objects of the loop; `local_sync` starts
}
"""Names that only the asynchronous side has."""


def test_the_tables_of_pairs_are_complete() -> None:
    facades = {facade for _, facade in PAIRS} | {facade for _, facade in FUNCTIONS}
    for module in (motet.client.sync, motet.client.logs):
        for name in module.__all__:
            if "sync" in name.lower():
                assert getattr(module, name) in facades, name


@pytest.mark.parametrize(("plain", "facade"), PAIRS)
def test_the_synchronous_side_has_all_public_names(plain: type, facade: type) -> None:
    assert public_names(plain) - public_names(facade) == LACKING.get(plain, set())


@pytest.mark.parametrize(("plain", "facade"), PAIRS)
def test_methods_of_the_synchronous_side_take_the_same_parameters(
    plain: type, facade: type
) -> None:
    for name in sorted(public_names(plain) & public_names(facade)):
        ours, theirs = getattr(facade, name, None), getattr(plain, name, None)
        if inspect.isfunction(theirs):
            assert callable(ours), name
            assert parameters(ours) == parameters(theirs), name


@pytest.mark.parametrize(("plain", "facade"), FUNCTIONS)
def test_functions_of_the_synchronous_side_take_the_same_parameters(
    plain: Callable[..., Any], facade: Callable[..., Any]
) -> None:
    assert parameters(facade) == parameters(plain)


def public_names(kind: type) -> set[str]:
    """Of the class, and of the attributes that its objects are given when they are made."""
    found: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("motet."):
            found |= vars(base).keys()
            if "__init__" in vars(base):
                text = textwrap.dedent(inspect.getsource(base.__init__))  # type: ignore[misc]
                found |= set(re.findall(r"^ +self\.(\w+)(?::[^=\n]+)? = ", text, re.MULTILINE))
    return {name for name in found if not name.startswith("_")}


def parameters(function: Callable[..., Any]) -> set[str]:
    """Their names; `Unpack` stands for its keywords."""
    found: set[str] = set()
    for each in inspect.signature(function).parameters.values():
        if each.kind is each.VAR_KEYWORD:
            name = str(each.annotation).removeprefix("Unpack[").removesuffix("]")
            found |= inspect.unwrap(function).__globals__[name].__annotations__.keys()
        else:
            found.add(each.name)
    return found


def test_verbs_take_their_argument_by_its_name_too(alice: motet.client.sync.SyncClient) -> None:
    alice.unsubscribe(subscription=alice.subscribe("step > 1"))  # type: ignore[call-arg]
    alice.unadvertise(advertisement="step > 0")  # type: ignore[call-arg]
    with alice.transaction() as tx:
        assert alice.explain(what=tx).kind  # type: ignore[call-arg]
        tx.abort()
    assert alice.outcome(tx_id=tx) == "aborted"  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'subscription'"):
        alice.unsubscribe()  # type: ignore[call-arg]


def test_get_nowait(alice: motet.client.sync.SyncClient, bob: motet.client.sync.SyncClient) -> None:
    subscription = bob.subscribe("step > 0")
    assert subscription.get_nowait() is None
    alice.publish({"step": 1})
    wait_until(lambda: subscription.buffered == 1)
    event = subscription.get_nowait()
    assert event is not None
    assert event["step"] == 1
    assert subscription.get_nowait() is None


def test_errors_of_callbacks_are_counted(
    alice: motet.client.sync.SyncClient, bob: motet.client.sync.SyncClient
) -> None:
    subscription = bob.subscribe("step > 0", callback=lambda event: event["absent"])
    alice.publish({"step": 1})
    wait_until(lambda: subscription.callback_errors == 1)
    assert isinstance(subscription.last_callback_error, KeyError)


def test_a_receipt_says_whether_it_is_settled(overlay: motet.client.sync.SyncOverlay) -> None:
    client = overlay.connect("carol", broker="B2")
    client.advertise("step > 0")
    receipt = client.send({"step": 1})
    receipt.wait(PATIENCE_S)
    assert receipt.settled
    client.close()
    assert receipt.settled


def test_an_event_is_acknowledged_by_itself(overlay: motet.client.sync.SyncOverlay) -> None:
    """On the synchronous side; tests of durable clients have the rest."""
    with overlay.connect("alice", broker="B1") as alice:
        alice.advertise("step > 0")
        dave = overlay.connect("dave", broker="B2", durable=True, acknowledge="manual")
        subscription = dave.subscribe("step > 0")
        alice.publish_many({"step": step} for step in range(1, 5))
        events = {event["step"]: event for event in (subscription.get(PATIENCE_S) for _ in "1234")}
        for step in (4, 1):
            events[step].ack()
        pubend = str(events[1].pubend)
        assert dave.session.cursors[pubend] == int(events[2].tick or 0) - 1
        asked = threading.Thread(target=events[2].ack)  # any thread may
        asked.start()
        asked.join()
        assert dave.session.cursors[pubend] == int(events[3].tick or 0) - 1
        dave.close(acknowledge=False)
        with overlay.connect("dave", broker="B2", durable=True) as dave:
            again = dave.subscribe("step > 0")
            assert [again.get(PATIENCE_S)["step"] for _ in "12"] == [3, 4]
            dave.close(discard_session=True)


def test_the_overlay_stops_and_starts_a_broker() -> None:
    with motet.local_sync(brokers=2) as overlay, overlay.connect("alice") as alice:
        overlay.stop_broker("B2")
        with pytest.raises(NotEffective, match="B2"):
            alice.advertise("step > 0", timeout=0.1)
        overlay.start_broker("B2")
        alice.advertise("step > 0")
        assert overlay.address("B2").startswith("inproc://")
        subscription = alice.subscribe("step > 0")
        receipt = alice.send_nowait({"step": 1})
        assert receipt is not None
        receipt.wait(timeout=PATIENCE_S)
    assert (subscription.ended, subscription.active) == (True, False)
    assert subscription.error is None  # the application has closed the client


def test_registrations_of_a_sync_client_are_synchronous(
    alice: motet.client.sync.SyncClient,
) -> None:
    advertisement = alice.advertise("step > 0")
    subscription = alice.subscribe("step > 1")
    assert {advertisement, subscription} <= set(alice.registrations)
    for each in alice.registrations:
        assert each.active
    alice.send({"step": 2})
    (found,) = (
        each for each in alice.registrations if isinstance(each, motet.client.sync.SyncSubscription)
    )
    assert found.get(timeout=PATIENCE_S)["step"] == 2
    assert found.unsubscribe() is None  # and no coroutine that nobody awaits
    assert found not in alice.registrations


def test_many_threads_publish_and_read(
    alice: motet.client.sync.SyncClient, bob: motet.client.sync.SyncClient
) -> None:
    subscription = bob.subscribe("step > 0")
    got: list[int] = []
    lock = threading.Lock()

    def publish(base: int) -> None:
        for step in range(base, base + 500):
            alice.send({"step": step})

    def read() -> None:
        while len(got) < 2000:
            for event in subscription.events(timeout=0.1):
                with lock:
                    got.append(event["step"])  # type: ignore[arg-type]

    threads = [threading.Thread(target=publish, args=(1000 * i,)) for i in range(1, 5)]
    threads += [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alice.flush(timeout=PATIENCE_S)
    assert sorted(got) == [1000 * i + k for i in range(1, 5) for k in range(500)]
    assert subscription.dropped == 0


def test_a_request_follows_what_was_published_before_it(
    overlay: motet.client.sync.SyncOverlay,
) -> None:
    with overlay.connect("carol", broker="B1", window=8) as carol:
        carol.advertise("step > 0")
        subscription = carol.subscribe("step = 40 or other > 0")
        for _ in range(20):
            for step in range(1, 41):
                carol.send({"step": step})
            advertisement = carol.advertise("other > 0", wait="local")
            carol.send({"other": 1})
            advertisement.unadvertise(wait="local")
        carol.flush(timeout=PATIENCE_S)
        got = [dict(subscription.get(timeout=PATIENCE_S).attributes) for _ in range(40)]
        assert got == [{"step": 40}, {"other": 1}] * 20


def test_callbacks_run_in_a_thread_and_may_call_the_client(
    alice: motet.client.sync.SyncClient, bob: motet.client.sync.SyncClient
) -> None:
    bob.advertise("echo > 0")
    echoes = alice.subscribe("echo > 0")
    bob.subscribe("step > 0", callback=lambda e: bob.send({"echo": e["step"]}))
    alice.send({"step": 7})
    assert echoes.get(timeout=PATIENCE_S)["echo"] == 7


@pytest.mark.parametrize("timeout", [float("inf"), 1e300])
def test_a_timeout_may_be_endless(
    timeout: float, alice: motet.client.sync.SyncClient, bob: motet.client.sync.SyncClient
) -> None:
    subscription = bob.subscribe("step > 0")
    timer = threading.Timer(0.1, alice.send, ({"step": 1},))
    timer.start()
    assert subscription.get(timeout=timeout)["step"] == 1
    timer.join()


FORKED = """
import os, motet
from motet.errors import MisuseError
with motet.local_sync(1) as overlay:
    client = overlay.connect("alice")
    client.advertise("step > 0")
    subscription = client.subscribe("step > 0")
    child = os.fork()
    if child == 0:
        said = 0
        event = {"step": 1}
        for use in (
            lambda: client.publish(event),
            lambda: client.subscribe("step > 0"),
            lambda: client.flush(),
            lambda: subscription.get(timeout=100.0),
            lambda: subscription.unsubscribe(),
        ):
            try:
                use()
            except MisuseError as error:
                said += "parent process" in str(error)
        client.close()
        os._exit(said)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    client.publish({"step": 2})
    print(subscription.get(timeout=100.0)["step"])
"""


def test_a_forked_child_is_told_that_the_client_is_not_its_own() -> None:
    assert printed_by(FORKED) == ["5", "2"]


def test_after_close(overlay: motet.client.sync.SyncOverlay) -> None:
    client = overlay.connect("carol")
    subscription = client.subscribe("step > 0")
    woken: list[str] = []

    def wait() -> None:
        try:
            subscription.get()
        except ClosedError:
            woken.append("closed")

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    client.close()
    client.close()
    thread.join(PATIENCE_S)
    assert woken == ["closed"]
    with pytest.raises(ClosedError):
        client.send({"step": 1})
    with pytest.raises(ClosedError):
        client.advertise("step > 0")


def test_fencing_reaches_a_waiting_thread(overlay: motet.client.sync.SyncOverlay) -> None:
    first = overlay.connect("dave")
    subscription = first.subscribe("step > 0")
    with overlay.connect("dave"), pytest.raises(Fenced):
        subscription.get(timeout=PATIENCE_S)
    with pytest.raises(Fenced):
        first.send({"step": 1})
    first.close()


def test_keyboard_interrupt_ends_a_waiting_get(bob: motet.client.sync.SyncClient) -> None:
    subscription = bob.subscribe("step > 0")
    # Whoever runs the tests in the background may have taught them to ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        subscription.get(timeout=PATIENCE_S)
    timer.join()
    signal.signal(signal.SIGINT, before)
    assert bob.status()["broker"] == "B2"


def test_no_broker_answers() -> None:
    threads = threading.active_count()
    with pytest.raises(Disconnected, match="motet up"):
        motet.connect_sync("motet://127.0.0.1:1")
    with pytest.raises(AddressError):
        motet.connect_sync("nowhere")
    assert threading.active_count() <= threads


def test_an_overlay_has_a_sequencer_for_synchronous_clients() -> None:
    with (
        motet.local_sync(brokers=1, ordering=True) as overlay,
        motet.ordering.connect_sync("memory://sync", sequencer=overlay.sequencer) as client,
        client.subscribe("orders", "prices") as stream,
    ):
        client.publish("orders", b"box")
        client.publish("prices", b"12")
        events = [stream.get(timeout=60) for _ in range(2)]
        assert [event.payload for event in events] == [b"box", b"12"]
