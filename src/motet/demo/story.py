"""The acts. Each one waits for what must come true, never for a clock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable

from motet.bench.figures import Figure
from motet.demo import overlay, report
from motet.demo.account import Account
from motet.demo.cast import SHOP_SELLS, WANTS, WAREHOUSE_SENDS, Cast
from motet.demo.report import Crash
from motet.errors import NotAdvertised, UnavailableError
from motet.model import Value

PATIENCE_S = 20.0
POLL_S = 0.02
VICTIM = "B2"

Tell = Callable[[str], None]


async def play(tell: Tell, orders: int = 200) -> list[Figure]:
    """The whole story; the figures say whether every promise was kept."""
    tell("[bold]Three brokers in a line, each a process of its own: B1 – B2 – B3[/bold]")
    async with overlay.running() as brokers, Cast(brokers, Account()) as cast:
        await _enter(cast, tell)
        await _route_by_content(cast, tell, orders)
        effective, tried = await _subscribe_and_be_served(cast, tell)
        await _refuse(cast, tell)
        crash = await _kill_and_recover(cast, tell)
        await _route_again(cast, tell, orders)
        return report.promises(cast.account.tally(), effective, tried, crash)


async def _enter(cast: Cast, tell: Tell) -> None:
    shop, warehouse = await cast.enter("shop", "B1"), await cast.enter("warehouse", "B3")
    await shop.advertise(SHOP_SELLS)
    await warehouse.advertise(WAREHOUSE_SENDS)
    tell(f"  shop       at B1 publishes  {SHOP_SELLS}")
    tell(f"  warehouse  at B3 publishes  {WAREHOUSE_SENDS}")
    for name, (broker, wanted) in WANTS.items():
        client = await cast.enter(name, broker)
        await cast.subscribe(name, client, wanted)
        tell(f"  {name:<9}  at {broker} wants      {wanted}")


async def _route_by_content(cast: Cast, tell: Tell, orders: int) -> None:
    tell("\n[bold]1. Content routing[/bold]: orders and shipments find who wants them")
    await _trade(cast, orders)
    await _settled(cast)
    tally = cast.account.tally()
    tell(
        f"  {tally.published} events published, {tally.delivered} deliveries: "
        f"{tally.lost} lost, {tally.doubled} doubled, {tally.misrouted} misrouted, "
        f"{tally.disordered} out of order"
    )


async def _subscribe_and_be_served(cast: Cast, tell: Tell, tries: int = 20) -> tuple[int, int]:
    tell("\n[bold]2. Effective means effective[/bold]: subscribe at B3, publish at B1 at once")
    fraud = await cast.enter("fraud", "B3")
    served = 0
    for number in range(tries):
        name = f"fraud-{number}"
        subscription = await cast.subscribe(name, fraud, "kind = 'order' and amount > 0")
        await cast.order()
        served += await _becomes_true(lambda: not cast.account.outstanding())
        await subscription.unsubscribe()
        cast.account.close(name)
    tell(f"  {served} of {tries} subscriptions got the very next event, two brokers away")
    return served, tries


async def _refuse(cast: Cast, tell: Tell) -> None:
    tell("\n[bold]3. Nobody publishes what he has not advertised[/bold]")
    event: dict[str, Value] = {
        "kind": "refund",
        "id": cast.account.next_id(),
        "amount": 500,
        "country": "NL",
    }
    cast.account.refuse(event)
    shop = cast.clients["shop"]
    receipt = await shop.publish(event)
    try:
        await receipt
    except NotAdvertised as refusal:
        tell(f"  refused: {refusal}")
    else:
        raise UnavailableError("an event outside the advertised space was accepted")
    with contextlib.suppress(NotAdvertised):  # a flush tells of it once more
        await shop.flush(PATIENCE_S)


async def _kill_and_recover(cast: Cast, tell: Tell) -> Crash:
    pid = cast.overlay.pids[VICTIM]
    tell(f"\n[bold]4. {VICTIM}, the one in the middle, dies[/bold]: SIGKILL to pid {pid}")
    routes = await _routes(cast)
    before = cast.account.tally().delivered
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    await _trade(cast, 20)

    async def reborn() -> bool:
        state = await cast.overlay.status(VICTIM)
        return state is not None and state["process"]["pid"] != pid

    await _must_become_true(reborn, f"{VICTIM} is not restarted")
    lost_routes = routes - await _routes(cast)
    await _must_become_true(cast.overlay.is_whole, "the links do not come up again")
    tell(f"  restarted by `motet up`, links are up after {time.monotonic() - began:.1f} s")
    tell(
        f"  its journal gave back {routes - lost_routes} of {routes} routes, before any link was up"
    )
    await _must_become_true(
        lambda: not cast.account.outstanding(), "what was published meanwhile does not arrive"
    )
    resumed_s = time.monotonic() - began
    kept = cast.account.tally().delivered - before
    lost_sessions = sum(client.lost_sessions for client in cast.clients.values())
    tell(f"  {lost_sessions} clients lost their session")
    tell(f"  all {kept} deliveries of what was published meanwhile came, after {resumed_s:.1f} s")
    return Crash(resumed_s, lost_sessions, lost_routes, kept)


async def _routes(cast: Cast) -> int:
    """Advertisements and subscriptions that the victim holds."""
    state = await cast.overlay.status(VICTIM)
    if state is None:
        raise UnavailableError(f"{VICTIM} does not answer")
    tables = state["tables"]
    return int(tables["advertisements"]) + int(tables["subscriptions"])


async def _route_again(cast: Cast, tell: Tell, orders: int) -> None:
    tell("\n[bold]5. As if nothing had happened[/bold]")
    before = cast.account.tally()
    await _trade(cast, orders)
    await _settled(cast)
    tally = cast.account.tally()
    tell(
        f"  {tally.published - before.published} events published, "
        f"{tally.delivered - before.delivered} deliveries, {tally.lost} lost"
    )


async def _trade(cast: Cast, orders: int) -> None:
    """Orders come in; those for the Netherlands are shipped at once."""
    for _ in range(orders):
        order = await cast.order()
        if order["country"] == "NL":
            number = order["id"]
            assert isinstance(number, int)
            await cast.shipment(number)
    for publisher in ("shop", "warehouse"):
        await cast.clients[publisher].flush(PATIENCE_S)


# ── waiting ──────────────────────────────────────────────────────────────────────────────


async def _settled(cast: Cast) -> None:
    """Until all that is owed has come, or patience ends: the tally says which."""
    await _becomes_true(lambda: not cast.account.outstanding())


async def _becomes_true(
    condition: Callable[[], bool | Awaitable[bool]], patience_s: float = PATIENCE_S
) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        holds = condition()
        if holds if isinstance(holds, bool) else await holds:
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)


async def _must_become_true(
    condition: Callable[[], bool | Awaitable[bool]], otherwise: str
) -> None:
    if not await _becomes_true(condition):
        raise UnavailableError(f"{otherwise} within {PATIENCE_S:g} s")
