"""`motet journal`: inspect, verify or compact the folder of a broker, or of a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from motet.broker.core.rebuild import BROKER
from motet.broker.folder.examination import Findings, examine, listed, machine_in
from motet.broker.folder.recovery import close_off
from motet.cli.console import FAILED, FINE, complain, out, say, say_json, table
from motet.cli.options import Json, argument, group, option
from motet.sequencer.machine import SITE

Folder = Annotated[Path, argument("DIR", "The folder of a broker, like run/B1, or of a site.")]

MACHINES = (BROKER, SITE)

journal = group("journal", "Inspect, verify or compact the folder of a broker.")


@journal.command("inspect")
def inspect_(
    directory: Folder,
    show: Annotated[
        int, option("N", "Also list N facts of the journal, oldest first.", "--facts", min=0)
    ] = 0,
    first: Annotated[int | None, option("FACT", "The first fact to list.", "--from", min=1)] = None,
    json: Json = False,
) -> int:
    """Show segments, snapshots and state of a broker, or of a site.

    Changes nothing, and works while it runs. Exit status 1 if something is damaged.
    """
    machine = machine_in(directory, MACHINES)
    found = examine(directory, machine)
    told = listed(directory, first, show, machine) if show and found.whole else []
    if json:
        plain = [{"fact": n, "at_s": f.now, **_plain(f.body)} for n, f in told]
        say_json(_as_json(found) | {"listed": plain})
    else:
        _show(found)
        for number, fact in told:
            say(f"{number:>8}  {fact.now:14.6f}  {fact.body}")
    return _judge(found, quiet=json)


@journal.command()
def verify(directory: Folder, json: Json = False) -> int:
    """Check all records and snapshots of a broker, or of a site.

    It rebuilds the state from them, and says what is damaged and how to repair it. Exit
    status 0 only if nothing is damaged.
    """
    found = examine(directory, machine_in(directory, MACHINES))
    if json:
        say_json(_as_json(found))
    elif found.whole:
        records = sum(segment.records for segment in found.segments)
        say(
            f"{directory} is intact: {records} records in {len(found.segments)} segments and "
            f"{len(found.snapshots)} snapshots restore {found.broker['name']} as of fact "
            f"{found.broker['facts']}"
        )
    return _judge(found, quiet=json)


@journal.command()
def snapshot(directory: Folder, json: Json = False) -> int:
    """Replace the journal of a stopped broker, or site, by a snapshot.

    Use it before an upgrade: only the release that wrote a journal can read it, but later releases
    can read its snapshots. Run it with the old release, then start the new one.
    """
    path = close_off(directory, machine_in(directory, MACHINES))
    if json:
        say_json({"snapshot": str(path), "bytes": path.stat().st_size})
    else:
        say(f"{path} holds the whole state; the journal starts empty after it")
    return FINE


def _judge(found: Findings, *, quiet: bool) -> int:
    if found.whole:
        return FINE
    if not quiet:
        for problem in found.problems:
            complain(problem)
        complain(f"the folder {found.directory} is damaged", found.way_out)
    return FAILED


def _as_json(found: Findings) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(found, enc_hook=str)  # paths
    return plain | {"whole": found.whole, "way_out": "" if found.whole else found.way_out}


def _plain(body: Any) -> dict[str, Any]:
    body_as_json = msgspec.to_builtins(body, enc_hook=str)  # filters in their notation
    return {"kind": type(body).__name__, "body": body_as_json}


def _show(found: Findings) -> None:
    segments = table(
        "segments",
        *("file", "first", "last", "records", "bytes", "sealed", "torn", "problem"),
        right=("first", "last", "records", "bytes", "torn"),
    )
    for each in found.segments:
        segments.add_row(
            *(
                str(each.file.name),
                str(each.first),
                str(each.last),
                f"{each.records:,}",
                f"{each.bytes:,}",
            ),
            *("yes" if each.sealed else "no", str(each.torn_bytes or ""), each.problem),
        )
    out().print(segments)
    if found.snapshots:
        shots = table(
            "\nsnapshots",
            *("file", "after fact", "version", "parts", "bytes", "problem"),
            right=("after fact", "version", "parts", "bytes"),
        )
        for shot in found.snapshots:
            shots.add_row(
                *(shot.file, str(shot.position), str(shot.version), f"{shot.parts:,}"),
                *(f"{shot.bytes:,}", shot.problem),
            )
        out().print(shots)
    if found.broker:
        rows = table(f"\n{found.what}", "what", "value")
        for key, value in found.broker.items():
            if key != "links":
                rows.add_row(key.replace("_", " "), str(value))
        for name, link in found.broker["links"].items():
            told = ", ".join(f"{count} {what}" for what, count in link.items())
            rows.add_row(f"link to {name}", told)
        out().print(rows)
