"""`motet order`: what it refuses, and what it prints, with a site in another thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from motet.cli import console
from motet.cli.main import run
from motet.ordering.envelope import opened, opened_header
from motet.ordering.services.memory import MemoryService
from motet.sequencer.config import SiteConfig
from tests.unit.ordering.line import RunningLine
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def site() -> Iterator[str]:
    """The address of a sequencer."""
    ready, over = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        line = RunningLine("a")
        line.addresses["a"] = "motet://127.0.0.1:0"
        line.configs["a"] = SiteConfig("a")
        await line.start("a")
        found.append(line.drivers["a"].address)
        ready.set()
        await asyncio.to_thread(over.wait, PATIENCE_S)
        await line.stop("a")

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(PATIENCE_S)
    yield found[0]
    over.set()
    thread.join(PATIENCE_S)


def test_it_publishes_and_says_the_last_number(
    site: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["memory://cli-pub", "orders", "hello", "--sequencer", site, "--count", "3"]
    assert run(["order", "pub", *words, "--json"]) == console.FINE
    said = json.loads(capsys.readouterr().out)
    assert (said["topic"], said["published"], said["last"]) == ("orders", 3, 3)
    assert run(["order", "pub", *words, "--client", "me"]) == console.FINE
    assert "published 3 of orders as me; the last number is 6" in capsys.readouterr().out


def test_it_prints_events(site: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The service is in this process: whoever publishes must be on the loop that it runs on."""
    ends: list[int] = []
    words = ["memory://cli-sub", "orders", "prices", "--sequencer", site, "--count", "1", "--json"]
    reader = threading.Thread(target=lambda: ends.append(run(["order", "sub", *words])))

    def publish_foreign() -> bool:
        for member in MemoryService._joined.get("cli-sub", []):
            if member._notify is not None and "prices" in member._topics:
                loop = next(iter(loops), None)
                if loop is not None:
                    loop.call_soon_threadsafe(member._notify, "prices", b"\xff")
                    return True
        return False

    loops: list[asyncio.AbstractEventLoop] = []
    opened = MemoryService.open

    async def noted(self: MemoryService, *arguments: object) -> None:
        loops.append(asyncio.get_running_loop())
        await opened(self, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryService, "open", noted)
        # Signals can only be handled in the main thread.
        patch.setattr("motet.cli.order.until_interrupted", lambda work: work)
        reader.start()
        wait_until(publish_foreign)
        reader.join(PATIENCE_S)
    assert ends == [console.FINE]
    shown = capsys.readouterr()
    lines = [json.loads(line) for line in shown.out.splitlines()]
    assert lines[0] == {"topic": "prices", "number": None, "late": False, "payload_base64": "/w=="}
    assert "subscribed behind orders 0, prices 0" in shown.err


def test_numbers_travel_in_headers_and_under_a_seal(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[bytes, str]] = []

    async def publish(self: MemoryService, topic: str, body: bytes, header: str = "") -> None:
        del self, topic
        sent.append((body, header))

    monkeypatch.setattr(MemoryService, "publish", publish)
    key = tmp_path / "key"
    key.write_bytes(b"sixteen letters!\n")
    words = ["order", "pub", "memory://cli-headers", "orders", "hello", "--sequencer", site]
    assert run([*words, "--headers"]) == console.FINE
    assert run([*words, "--headers", "--key-file", str(key)]) == console.FINE
    assert run([*words, "--key-file", str(key)]) == console.FINE
    (plain, header), (payload, signed), (body, nothing) = sent
    assert (plain, payload, nothing) == (b"hello", b"hello", "")
    assert header.endswith("]")
    secret = b"sixteen letters!"
    assert opened_header(signed, payload, secret)[0][0].number == 2
    assert [stamp.number for stamp, _ in opened(body, secret) or ()] == [3]


def test_too_few_events_are_a_failure(site: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["memory://cli-none", "orders", "--sequencer", site, "--count", "1"]
    assert run(["order", "sub", *words, "--duration", "0.05"]) == console.FAILED
    assert "only 0 of 1 events" in capsys.readouterr().err


def test_it_shows_the_sites(site: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["order", "status", site, "--json"]) == console.FINE
    said = json.loads(capsys.readouterr().out)
    assert [each["site"] for each in said["sites"]] == ["a"]
    assert said["unreachable"] == []
    assert run(["order", "status", site]) == console.FINE
    assert "mode causal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        (["sub", "pigeon://coop", "orders"], console.MISUSE, "must begin with one of"),
        (["sub", "memory://x", "a", "--foreign", "eaten"], console.MISUSE, "eaten"),
        (["sub", "memory://x", "a", "--key-file", "/nowhere"], console.MISUSE, "cannot read"),
        (["pub", "memory://x", "a", "b", "--key-file", "/dev/null"], console.MISUSE, "0 bytes"),
        (["pub", "redis://x", "a", "b", "--headers"], console.FAILED, "has no headers"),
        (["sub", "memory://x", "a", "--sequencer", "nowhere"], console.MISUSE, "not an address"),
        (["pub", "memory://x", "a", "--count", "2"], console.MISUSE, "--count"),
        (["pub", "memory://x"], console.MISUSE, "TOPIC"),
        (
            ["status", "motet://127.0.0.1:1", "--timeout", "0.1"],
            console.FAILED,
            "no sequencer answers at motet://127.0.0.1:1",
        ),
    ],
)
def test_errors_are_one_clear_line(
    words: list[str], status: int, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["order", *words]) == status
    shown = capsys.readouterr().err
    assert problem in shown
    assert "Traceback" not in shown


def test_an_error_that_says_what_to_start_has_no_hint_about_overlays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--sequencer", "motet://127.0.0.1:1", "--timeout", "0.2"]
    assert run(["order", "pub", "memory://cli-away", "orders", "x", *words]) == console.FAILED
    said = capsys.readouterr().err
    assert "check that `motet sequencer` runs there" in said
    assert "hint" not in said
