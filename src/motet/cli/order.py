"""`motet order`: publish and print events of ordered topics over any service; look at sites."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from motet.cli.console import (
    FAILED,
    FINE,
    CommandFailed,
    Misuse,
    out,
    remark,
    say,
    say_json,
    table,
)
from motet.cli.interrupt import until_interrupted
from motet.cli.options import ClientId, Json, argument, group, option
from motet.cli.pub import stdin_lines
from motet.client.channel import Answer, ask_all
from motet.errors import MotetError, NoClientsHere, UnavailableError
from motet.ordering.client import CONNECT_S, OrderedStream, connect
from motet.ordering.envelope import LONGEST_KEY, SHORTEST_KEY
from motet.ordering.events import Gap, LostEvents, OrderedEvent
from motet.ordering.machine import COUNTED, TAGGED
from motet.ordering.sites import addresses_of
from motet.ordering.topics import Topic
from motet.runtime.addresses import check_address
from motet.runtime.loop import run

SITE = "motet://127.0.0.1:7720"
SHOWN_PAYLOAD_BYTES = 60
PATTERN = "="
NOBODY_LEADS = (
    "no process that answers leads it; start the other one, or its witness, or let this one lead: "
    "`motet sequencer promote`"
)

ServiceUrl = Annotated[
    str, argument("SERVICE", "Like nats://127.0.0.1:4222, mqtt://…, redis://… or motet://….")
]
Sequencer = Annotated[
    str,
    option(
        "URL",
        "The address of any site of the sequencer; with a comma, also that of its standby.",
    ),
]
Timeout = Annotated[float, option("SECONDS", "How long to wait for an answer.", min=0.0)]
KeyFile = Annotated[
    Path | None,
    option("FILE", "A secret that all clients share: events without its seal are dropped."),
]

order = group("order", "Publish and print events in one order across topics.")


# ── pub ──────────────────────────────────────────────────────────────────────────────────


@order.command()
def pub(
    service: ServiceUrl,
    topic: Annotated[str, argument("TOPIC", "The topic of the events.")],
    payload: Annotated[
        str | None,
        argument("PAYLOAD", "The payload.", show_default="each line of standard input is one"),
    ] = None,
    sequencer: Sequencer = SITE,
    client: ClientId = "",
    subject: Annotated[
        str, option("NAME", "Where to publish, if the topic has a pattern.", show_default="TOPIC")
    ] = "",
    count: Annotated[int, option("N", "Number of times to publish PAYLOAD.", min=1)] = 1,
    rate: Annotated[
        float, option("N", "Maximum events per second; 0 means no limit.", min=0.0)
    ] = 0.0,
    headers: Annotated[
        bool,
        typer.Option(
            "--headers",
            help="Put numbers into headers of the service, and leave payloads alone for others.",
        ),
    ] = False,
    key_file: KeyFile = None,
    timeout: Timeout = CONNECT_S,
    json: Json = False,
) -> int:
    """Publish an event, or one for each line of input.

    It is published when the sequencer has confirmed its number. Exit status 1 if an event was not
    published, or so late that its number was void.
    """
    if payload is None:
        if count != 1:
            raise Misuse("--count applies only to a PAYLOAD", "omit it, or give a PAYLOAD")
        if sys.stdin.isatty():
            raise Misuse("there is no event to publish", f"motet order pub {service} {topic} hello")
        source = _lines()
    else:
        source = _repeated(payload.encode(), count)
    name = client or f"pub-{os.getpid()}"
    key = _key(key_file)

    async def work() -> int:
        opening = connect(
            service,
            sequencer=sequencer,
            client_id=name,
            headers=headers,
            key=key,
            timeout=timeout,
        )
        async with opening as opened:
            published, begin, last = 0, time.monotonic(), None
            async for body in source:
                if rate:
                    await asyncio.sleep(max(0.0, begin + published / rate - time.monotonic()))
                last = await opened.send(topic, body, subject=subject)
                published += 1
            await opened.flush(timeout=timeout)
            number = (await last).number if last is not None else 0
        if json:
            say_json({"client": name, "topic": topic, "published": published, "last": number})
        else:
            say(f"published {published} of {topic} as {name}; the last number is {number}")
        return FINE

    return run(until_interrupted(work()))


async def _repeated(payload: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield payload


async def _lines() -> AsyncIterator[bytes]:
    async for line in stdin_lines():
        yield line.encode()


# ── sub ──────────────────────────────────────────────────────────────────────────────────


@order.command()
def sub(
    service: ServiceUrl,
    topics: Annotated[
        list[str], argument("TOPIC", "Topics; NAME=PATTERN puts many subjects under one.")
    ],
    sequencer: Sequencer = SITE,
    client: ClientId = "",
    count: Annotated[int, option("N", "Stop after N events; 0 means never.", min=0)] = 0,
    duration: Annotated[
        float, option("SECONDS", "Stop after this time; 0 means never.", min=0.0)
    ] = 0.0,
    patience: Annotated[
        float,
        option(
            "SECONDS",
            "How long to wait for a missing number before asking what became of it.",
            min=0.0,
        ),
    ] = 0.25,
    limit: Annotated[
        float,
        option(
            "SECONDS",
            "How long to wait for an event that was published, if the service may lose events.",
            min=0.0,
        ),
    ] = 5.0,
    foreign: Annotated[
        str,
        option(
            f"{TAGGED}|{COUNTED}",
            "Events of publishers that do not take part are printed without number, or counted.",
        ),
    ] = TAGGED,
    key_file: KeyFile = None,
    timeout: Timeout = CONNECT_S,
    json: Json = False,
) -> int:
    """Print events of topics in one order until Ctrl-C.

    All streams that print two events print them in the same order, whatever their topics. An event
    that is marked late came after its place was passed. Lost events and gaps are reported.

    Exit status 1 if fewer than --count events arrive within --duration.
    """
    name = client or f"sub-{os.getpid()}"
    wanted = [_topic(word) for word in topics]
    key = _key(key_file)
    if foreign not in (TAGGED, COUNTED):
        raise Misuse(f"unknown value {foreign!r} for --foreign", f"choose {TAGGED} or {COUNTED}")

    async def work() -> int:
        opening = connect(
            service,
            sequencer=sequencer,
            client_id=name,
            patience=patience,
            limit=limit,
            foreign="counted" if foreign == COUNTED else "tagged",
            key=key,
            timeout=timeout,
        )
        async with opening as opened, opened.subscribe(*wanted, timeout=timeout) as stream:
            cut = ", ".join(f"{topic} {number}" for topic, number in stream.cut.items())
            remark(f"{name} subscribed behind {cut}")
            await _print_events(stream, count, duration, json)
            if opened.foreign_events:
                remark(f"{opened.foreign_events} events came from publishers that take no part")
            if stream.forged:
                remark(f"{stream.forged} events were forged, and dropped")
        return FINE

    return run(until_interrupted(work()))


def _key(file: Path | None) -> bytes:
    if file is None:
        return b""
    hint = f"name a file of {SHORTEST_KEY} to {LONGEST_KEY} bytes with --key-file"
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise Misuse(f"cannot read {file}: {error.strerror}", hint) from None
    if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        raise Misuse(f"{file} has a key of {len(key)} bytes", hint)
    return key


def _topic(word: str) -> Topic:
    name, _, pattern = word.partition(PATTERN)
    return Topic(name, pattern)


async def _print_events(stream: OrderedStream, count: int, duration_s: float, json: bool) -> None:
    printed = 0
    try:
        async with asyncio.timeout(duration_s or None):
            async for event in stream:
                _tell_losses(stream)
                _show(event, json)
                printed += 1
                if printed == count:
                    return
    except TimeoutError:
        _tell_losses(stream)
        if printed < count:
            raise CommandFailed(
                f"only {printed} of {count} events arrived within {duration_s:g} s",
                "check that a client publishes on these topics, with the same sequencer",
            ) from None


def _tell_losses(stream: OrderedStream) -> None:
    while stream.losses:
        news = stream.losses.popleft()
        if isinstance(news, LostEvents):
            numbers = ", ".join(map(str, news.numbers[:10]))
            more = f" and {len(news.numbers) - 10} more" if len(news.numbers) > 10 else ""
            remark(f"lost by the service: {news.topic} {numbers}{more}")
        else:
            assert isinstance(news, Gap)
            remark(f"the stream lost its place, and joins anew: {news.reason}")


def _show(event: OrderedEvent, json: bool) -> None:
    if json:
        said: dict[str, Any] = {"topic": event.topic, "number": event.number, "late": event.late}
        try:
            said["payload"] = event.payload.decode()
        except UnicodeDecodeError:
            said["payload_base64"] = base64.b64encode(event.payload).decode()
        say_json(said)
        return
    number = "-" if event.number is None else event.number
    payload = event.payload[:SHOWN_PAYLOAD_BYTES].decode(errors="replace")
    shown = "".join(char if char.isprintable() else "\ufffd" for char in payload)
    more = len(event.payload) - SHOWN_PAYLOAD_BYTES
    end = f" and {more} more bytes" if more > 0 else ""
    say(f"{event.topic} {number}  {shown}{end}{'  (late)' if event.late else ''}")


# ── status ───────────────────────────────────────────────────────────────────────────────


@order.command()
def status(
    sequencer: Annotated[str, argument("URL", "The address of any site of the sequencer.")] = SITE,
    timeout: Timeout = CONNECT_S,
    json: Json = False,
) -> int:
    """Show the sites of a sequencer, who leads, and what they do.

    Exit status 1 if a site does not answer.
    """

    async def work() -> tuple[dict[str, str], dict[str, Answer]]:
        given = addresses_of(sequencer)
        for each in given:
            check_address(each)
        known = await ask_all({each: each for each in given}, timeout)
        pairs = [
            each["pair"] for each in known.values() if isinstance(each, dict) and "pair" in each
        ]
        others = [pair["standby"] for pair in pairs if pair["standby"]]
        together = ",".join(dict.fromkeys((*given, *others)))
        try:
            async with connect("memory://status", sequencer=together, timeout=timeout) as client:
                addresses = dict(client.line)
        except (UnavailableError, NoClientsHere):
            if not pairs:
                raise
            addresses = {name_of(known.values()) or sequencer: together}  # nobody leads it
        asked = {each: each for together in addresses.values() for each in addresses_of(together)}
        replicas = await ask_all(asked, timeout)
        return addresses, {name: leading(replicas, each) for name, each in addresses.items()}

    addresses, answers = run(work())
    if json:
        say_json(_as_json(addresses, answers))
    else:
        out().print(_page(addresses, answers))
    for name, state in answers.items():
        if isinstance(state, dict) and state["pair"]["problem"]:
            remark(f"site {name}: {state['pair']['problem']}")
        elif isinstance(state, dict) and not is_primary(state):
            remark(f"site {name}: {NOBODY_LEADS}")
    away = [name for name in addresses if isinstance(answers.get(name), MotetError | None)]
    for name in away:
        remark(f"site {name} at {addresses[name] or 'an unknown address'} does not answer")
    return FAILED if away else FINE


def leading(replicas: Mapping[str, Answer], together: str) -> Answer:
    """Of the answers of the one or two processes of a site: that of the primary, if one leads."""
    answers = [replicas[each] for each in addresses_of(together)]
    states = [each for each in answers if isinstance(each, dict)]
    states.sort(key=lambda state: (is_primary(state), state.get("pair", {}).get("term", 0)))
    if states:
        return states[-1]
    return answers[0] if answers else UnavailableError("it has no address")


def name_of(answers: Iterable[Answer]) -> str:
    """The name of the site whose processes have answered; empty if none has."""
    return next((each["site"] for each in answers if isinstance(each, dict) and "site" in each), "")


def is_primary(state: Mapping[str, Any]) -> bool:
    return bool(state.get("pair", {}).get("role") == "primary")


def _as_json(addresses: Mapping[str, str], answers: Mapping[str, Answer]) -> dict[str, Any]:
    return {
        "sites": [
            {"address": addresses[name], **answer}
            for name, answer in answers.items()
            if not isinstance(answer, MotetError)
        ],
        "unreachable": [
            {"site": name, "address": address, "error": str(answers.get(name, "no address"))}
            for name, address in addresses.items()
            if isinstance(answers.get(name), MotetError | None)
        ],
    }


COLUMNS = (
    *("topics", "numbers", "passed", "voided", "unsettled", "streams", "connected", "expired"),
)


def _page(addresses: Mapping[str, str], answers: Mapping[str, Answer]) -> Any:
    states = [each for each in answers.values() if not isinstance(each, MotetError)]
    mode = states[0].get("mode", "") if states else ""
    title = f"line, lowest first; mode {mode}"
    shown = table(
        title, "site", "primary", "term", "standby", *COLUMNS, "links", right=("term", *COLUMNS)
    )
    for name in addresses:
        state = answers.get(name)
        if not isinstance(state, dict):
            continue
        links = [f"{other} {link['phase']}" for other, link in state.get("links", {}).items()]
        figures = [str(state.get(each, "")) for each in COLUMNS]
        primary, term, standby = _led(state)
        shown.add_row(name, primary, term, standby, *figures, ", ".join(links) or "-")
    return shown


def _led(state: Mapping[str, Any]) -> tuple[str, str, str]:
    """Who leads a site, since which term, and how its standby is."""
    pair = state["pair"]
    if not is_primary(state):
        step = "in step" if pair["in_step"] else "not in step"
        return "nobody", str(pair["term"]), f"{state['process']['address']} {step}"
    if not pair["standby"]:
        return state["process"]["address"], str(pair["term"]), "-"
    how = "in step" if pair["in_step"] else "coming" if pair["connected"] else "away"
    witness = ", witness away" if pair["witness"] == "away" else ""
    return state["process"]["address"], str(pair["term"]), f"{pair['standby']} {how}{witness}"
