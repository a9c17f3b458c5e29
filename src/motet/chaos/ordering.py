"""One run of the profile `ordering`: sites, clients and a real event service as processes, faults,
and the checkers of order across topics on what the clients have written into their diaries."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from motet.chaos.cast import TARGETS, CastMember, OrderChaosPlan, OrderFault, OrderStrike, Role
from motet.chaos.chronicle import Tell
from motet.chaos.judgement import ChaosViolation
from motet.chaos.member import DIARY, STATE
from motet.chaos.memoirs import Memoirs
from motet.errors import MotetError, UnavailableError
from motet.fleet.process import BrokerProcess, SiteProcess, WitnessProcess, free_addresses
from motet.fleet.servers import NatsServer
from motet.testing.ordering.checkers import causality, completeness, notification_order, numbers
from motet.testing.ordering.history import UnmetWait

CHECKERS = (notification_order, causality, numbers, completeness)
MOST_OF_EACH = 10
EVENTS_OF_LIFE = 1_000_000
"""Events of one process of a client are numbered from a multiple of this."""
DOOM_S = 5.0
"""How long a client may take to kill itself."""
REST_POLL_S = 0.2
START_LIMIT_S = 120.0
STANDBYS = "standbys"
"""The folder of the second processes of sites, in that of the run."""
LISTENING: tuple[Role, ...] = ("site", "standby", "witness")
NOTES = 3
"""How often the state of rest must be seen in a row."""


class OrderReport(Struct):
    plan: OrderChaosPlan
    faults: dict[str, int]
    figures: dict[str, int]
    """Of clients and events."""
    longest_silence_s: float
    checked: dict[str, int]
    violations: list[ChaosViolation]

    @property
    def kept(self) -> bool:
        return not self.violations

    @property
    def violated(self) -> dict[str, int]:
        return dict(Counter(each.guarantee for each in self.violations))

    def to_json(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "profile": "ordering",
            "sites": plan.sites,
            "standbys": plan.standbys,
            "clients": plan.clients,
            "mode": plan.mode,
            "seconds": plan.seconds,
            "seed": plan.seed,
            "faults": self.faults,
            "ordering": self.figures,
            "longest_silence_s": round(self.longest_silence_s, 3),
            "checked": self.checked,
            "violations": [
                {"guarantee": each.guarantee, "detail": each.detail} for each in self.violations
            ],
            "kept": self.kept,
        }


class MemberProcess(BrokerProcess):
    """One process of a client."""

    command = ("client",)
    key = "client"

    def say(self, word: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(f"{word}\n".encode())
                self._process.stdin.flush()

    @property
    def diary(self) -> Path:
        return self.data.with_suffix(DIARY)

    def state(self) -> dict[str, Any]:
        with contextlib.suppress(OSError):
            found: dict[str, Any] = msgspec.json.decode(self.data.with_suffix(STATE).read_bytes())
            return found
        return {}


class Actor:
    """One of the cast, on the stage: its process, or for clients its present one."""

    def __init__(self, cast: CastMember) -> None:
        self.cast = cast
        self.away = False
        self.process: BrokerProcess | None = None
        self.lives: list[MemberProcess] = []


class OrderRun:
    """`await OrderRun(plan, directory).report()`; all its files are in the directory."""

    def __init__(self, plan: OrderChaosPlan, directory: Path, tell: Tell = str) -> None:
        self.plan = plan
        self.directory = directory
        self.stage = "starting"
        self.faults: Counter[str] = Counter()
        self._tell = tell
        self._story: list[str] = []
        self._began_at = time.monotonic()
        self._stormy_since: float | None = None
        self._violations: list[ChaosViolation] = []
        self._waits: list[UnmetWait] = []
        listening = [each.name for each in plan.cast() if each.role in LISTENING]
        addresses = free_addresses(len(listening))
        self._addresses = dict(zip(listening, addresses, strict=True))
        self._sites_file = directory / "sites.toml"
        self._service = NatsServer(directory)
        self._service.ends_with_us = True
        self._actors = [Actor(each) for each in plan.cast()]
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def stormed_s(self) -> float:
        """For how long faults have been injected."""
        since = self._stormy_since
        return 0.0 if since is None else time.monotonic() - since

    def remark(self) -> str:
        lives = sum(len(actor.lives) for actor in self._of("client"))
        return f"{sum(self.faults.values())} faults · {lives} clients"

    async def report(self) -> OrderReport:
        """Run all stages. Leaves no process behind, whatever happens."""
        try:
            await self._start()
            await self._storm()
            await self._rest()
            self._look_for_ends()
            await self._stop()
        finally:
            self._end()
        self.stage = "judging"
        report = await asyncio.to_thread(self._judge)
        (self.directory / "story.txt").write_text("\n".join(self._story) + "\n", encoding="utf-8")
        return report

    def _of(self, *roles: Role) -> list[Actor]:
        return [actor for actor in self._actors if actor.cast.role in roles]

    def _note(self, text: str) -> None:
        line = f"{time.monotonic() - self._began_at:8.3f}  {text}"
        self._story.append(line)
        self._tell(line)

    # ── the cast ─────────────────────────────────────────────────────────────────────────

    async def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._sites_file.write_text(self._settings(), encoding="utf-8")
        self._service.start()
        for actor in self._of("site", "standby", "witness"):
            actor.process = self._server(actor.cast)
        await asyncio.gather(*(server.start() for server in self._servers()))
        for actor in self._of("client"):
            self._enter(actor)
        deadline = time.monotonic() + START_LIMIT_S
        while not all(member.state().get("clocks") for member in self._living()):
            if time.monotonic() > deadline:
                raise UnavailableError(f"clients have no streams within {START_LIMIT_S:g} s")
            await asyncio.sleep(REST_POLL_S)

    def _servers(self) -> list[BrokerProcess]:
        actors = self._of("site", "standby", "witness")
        return [actor.process for actor in actors if actor.process is not None]

    def _server(self, cast: CastMember) -> BrokerProcess:
        if cast.role == "witness":
            return WitnessProcess(
                cast.name, ("--listen", self._addresses[cast.name]), self.directory
            )
        options = ("--sites", str(self._sites_file), "--snapshot-bytes", "65536")
        if cast.role == "site":
            return SiteProcess(cast.site, options, self.directory)
        folder = self.directory / STANDBYS  # both replicas have the name of their site
        folder.mkdir(exist_ok=True)
        return SiteProcess(cast.site, (*options, "--second"), folder)

    def _settings(self) -> str:
        plan = self.plan
        lines = ["[ordering]", f"line = {list(plan.line)}", f'mode = "{plan.mode}"']
        if plan.standbys:
            lines.append(f'witness = "{self._addresses["witness"]}"')
        for name in ("lease_s", "keep_s", "heartbeat_s", "patience_s"):
            lines.append(f"{name} = {getattr(plan, name)}")
        for site in plan.line:
            lines += [f"[sites.{site}]", f'listen = "{self._addresses[site]}"']
            lines.append(f'topics = ["{site}.*"]')
            if plan.standbys:
                lines.append(f'standby = "{self._addresses[f"{site}-standby"]}"')
        return "\n".join(lines) + "\n"

    def _enter(self, actor: Actor) -> None:
        """A new process of a client."""
        plan, name = self.plan, actor.cast.name
        life = len(actor.lives) + 1
        place = 1 + self._actors.index(actor)
        options = {
            "--service": self._service.url,
            "--sequencer": self._entry(actor.cast.site),
            "--topics": ",".join(plan.topics),
            "--seed": plan.seed * 1000 + place * 100 + life,
            "--first": (place * 1000 + life) * EVENTS_OF_LIFE,
            "--rate": plan.rate,
            "--changes": plan.changes,
        }
        process = MemberProcess(
            f"{name}-{life}",
            [str(word) for pair in options.items() for word in pair],
            self.directory,
            program=(sys.executable, "-m", "motet.chaos.member"),
        )
        process.spawn()
        actor.process = process
        actor.lives.append(process)

    def _entry(self, site: str) -> str:
        names = (site, f"{site}-standby") if self.plan.standbys else (site,)
        return ",".join(self._addresses[name] for name in names)

    # ── the storm ────────────────────────────────────────────────────────────────────────

    async def _storm(self) -> None:
        self.stage, self._stormy_since = "storm", time.monotonic()
        loop = asyncio.get_running_loop()
        began = loop.time()
        for strike in self.plan.strikes():
            await asyncio.sleep(began + strike.at_s - loop.time())
            self._strike(strike)
        await asyncio.sleep(began + self.plan.seconds - loop.time())
        self.stage = "mending"
        if self._under_way:
            await asyncio.wait(self._under_way)
        self._note("all faults are over and repaired")

    def _strike(self, strike: OrderStrike) -> None:
        victims = [actor for actor in self._of(*TARGETS[strike.kind]) if not actor.away]
        if not victims:
            return
        victim = victims[int(strike.draw * len(victims))]
        victim.away = True
        self.faults[strike.kind] += 1
        self._note(f"{strike.kind} {victim.cast.name} for {strike.lasts_s:.2f} s")
        work = asyncio.get_running_loop().create_task(self._hit(victim, strike))
        self._under_way.add(work)
        work.add_done_callback(self._under_way.discard)

    async def _hit(self, victim: Actor, strike: OrderStrike) -> None:
        try:
            if victim.cast.role == "service":
                await self._hit_service(strike)
            elif victim.process is not None:
                await self._hit_process(victim, victim.process, strike.kind, strike.lasts_s)
        except (MotetError, OSError) as problem:
            detail = f"{victim.cast.name} did not come back: {problem}"
            self._violations.append(ChaosViolation("invariants", detail))
        victim.away = False
        self._note(f"{victim.cast.name} is back")

    async def _hit_service(self, strike: OrderStrike) -> None:
        """Its calls are short, and it must be started in this thread."""
        service = self._service
        if strike.kind == "pause_service":
            service.freeze()
            await asyncio.sleep(strike.lasts_s)
            service.thaw()
        else:
            service.kill()
            await asyncio.sleep(strike.lasts_s)
            service.start()

    async def _hit_process(
        self, victim: Actor, process: BrokerProcess, kind: OrderFault, lasts_s: float
    ) -> None:
        if kind in ("pause_site", "pause_client"):
            process.pause()
            await asyncio.sleep(lasts_s)
            process.resume()
            return
        if kind == "restart_site":
            await process.stop()
        elif kind in ("kill_numbered", "kill_published"):
            await self._doom(process, kind)
        else:
            process.kill()
            await process.ended()
        await asyncio.sleep(lasts_s)
        if victim.cast.role == "client":
            self._enter(victim)
        else:
            await process.start()

    async def _doom(self, process: BrokerProcess, kind: OrderFault) -> None:
        """It kills itself at the next such moment; or we do, if that does not come."""
        number = signal.SIGUSR1 if kind == "kill_numbered" else signal.SIGUSR2
        process.signal(number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DOOM_S):
                await process.ended()
                return
        self.faults[f"{kind}_late"] += 1
        process.kill()
        await process.ended()

    # ── rest ─────────────────────────────────────────────────────────────────────────────

    def _living(self) -> Iterator[MemberProcess]:
        for actor in self._of("client"):
            if actor.lives and actor.lives[-1].running:
                yield actor.lives[-1]

    async def _rest(self) -> None:
        """Without faults and without acts, nobody waits for anything, and all are equally far."""
        self.stage = "settling"
        for member in self._living():
            member.say("calm")
        deadline = time.monotonic() + self.plan.settle_s
        seen = 0
        while seen < NOTES:
            waits = self._unmet()
            seen = 0 if waits else seen + 1
            if waits and time.monotonic() > deadline:
                self._waits = waits
                break
            await asyncio.sleep(REST_POLL_S)
        self._note("everything is at rest" if not self._waits else "it does not come to rest")

    def _unmet(self) -> list[UnmetWait]:
        states = {member.name: member.state() for member in self._living()}
        upto: Counter[str] = Counter(dict.fromkeys(self.plan.topics, 0))
        for state in states.values():
            for topic, number in (
                *state.get("clocks", {}).items(),
                *state.get("published", {}).items(),
            ):
                upto[topic] = max(upto[topic], number)
        found = []
        for name, state in states.items():
            if not state.get("calm"):
                found.append(UnmetWait(name, "the end of its acts"))
            elif state["open"]:
                found.append(UnmetWait(name, f"{state['open']} outcomes of publications"))
            elif state["changing"]:
                found.append(UnmetWait(name, "a change of its stream"))
            elif state["waiting"] or state["clocks"] != dict(upto):
                found.append(UnmetWait(name, f"{dict(upto)}, it is at {state['clocks']}"))
        return found

    def _look_for_ends(self) -> None:
        for actor in self._of("site", "standby", "witness", "client"):
            process = actor.process
            if process is not None and not process.running:
                detail = f"{actor.cast.name} has ended: {process.ending}; see {process.log}"
                self._violations.append(ChaosViolation("invariants", detail))

    async def _stop(self) -> None:
        self.stage = "stopping"
        for member in self._living():
            member.say("quit")
        await asyncio.gather(*(member.ended() for member in self._living()))
        sites = self._servers()
        for site, well in zip(sites, await asyncio.gather(*(s.stop() for s in sites)), strict=True):
            if not well:
                detail = f"{site.name} did not stop when it was asked to"
                self._violations.append(ChaosViolation("settles", detail))

    def _end(self) -> None:
        for work in self._under_way:
            work.cancel()
        for actor in self._actors:
            for process in (*actor.lives, *([actor.process] if actor.process else [])):
                process.end()
        self._service.kill()

    # ── judgement ────────────────────────────────────────────────────────────────────────

    def _judge(self) -> OrderReport:
        memoirs = Memoirs(self.plan.mode)
        memoirs.read(
            (life.name, life.diary, life is not actor.lives[-1])
            for actor in self._of("client")
            for life in actor.lives
        )
        history = memoirs.history
        verdicts = [checker.check(history) for checker in CHECKERS]
        checked = {each.guarantee: each.checked for each in verdicts}
        for each in verdicts:
            for detail in each.violations[:MOST_OF_EACH]:
                self._violations.append(ChaosViolation(each.guarantee, detail))
        for guarantee, detail in history.oddities[:MOST_OF_EACH]:
            self._violations.append(ChaosViolation(guarantee, detail))
        checked["settles"] = len(history.publications)
        for wait in self._waits:
            self._violations.append(ChaosViolation("settles", f"{wait.who} waits for {wait.what}"))
        counts = memoirs.counts
        figures = {
            "publications": counts["asked"],
            "published": counts["published"],
            "voided": counts["Voided"],
            "refused": counts["NotPublished"],
            "delivered": counts["delivered"],
            "late": counts["late"],
            "lost": counts["lost"],
            "gaps": counts["gaps"],
            "changes": counts["changes"],
            "sessions": len(history.sessions),
            "processes": sum(len(actor.lives) for actor in self._of("client")),
        }
        return OrderReport(
            self.plan,
            dict(sorted(self.faults.items())),
            figures,
            memoirs.longest_silence_s,
            checked,
            self._violations,
        )
