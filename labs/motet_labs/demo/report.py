"""The output of the story in its folder: report.html, a self-contained page; report.json; and
pictures, which need matplotlib."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from motet.pictures import BLUE, GREEN, INK, ORANGE, rule, save, sheet
from motet.spark.insight import pictures
from motet_labs import figures
from motet_labs.demo import promises
from motet_labs.demo.clients import DESK, FOLLOWED, FOLLOWER, HANDLERS, HOMES, EventSeen
from motet_labs.demo.overlay import LINKS, MIDDLE, PUBLISHED_AT, WRITTEN_AT
from motet_labs.demo.promises import Promise
from motet_labs.demo.story import StoryOutcome

VERSION: Final = 1
FALL: Final = "#c62f2f"
MOVED: Final = "#5b3a8e"


def write(told: StoryOutcome, found: Sequence[Promise]) -> dict[str, Any]:
    """Write everything; returns the content of report.json."""
    folder = told.wish.folder
    drawn = draw(told, folder / "pictures")
    (folder / "report.html").write_text(page(told, found, drawn), encoding="utf-8")
    said = {
        "version": VERSION,
        "kept": promises.kept(found),
        "promises": [each.to_json() for each in found],
        "audit": told.audit.as_dict() if told.audit is not None else None,
        "timeline": [
            {"at_s": round(at_s, 3), "what": what} for at_s, what in told.timeline.moments
        ],
        "seconds": round(told.took_s, 1),
        "report": str(folder / "report.html"),
        "machine": figures.machine(),
    }
    text = json.dumps(said, indent=2, default=str) + "\n"
    (folder / "report.json").write_text(text, encoding="utf-8")
    return said


# ── the page ─────────────────────────────────────────────────────────────────────────────

STYLE: Final = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #23272e; background: #f6f7f9;
  margin: 0; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1.5rem 4rem; background: white; }
h1 { font-size: 1.6rem; margin: 0.4rem 0 0.2rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 0.5rem; border-bottom: 1px solid #dfe3e8;
  padding-bottom: 0.2rem; }
p { max-width: 50rem; }
.verdict { padding: 0.6rem 1rem; border-radius: 6px; font-weight: 600; margin: 0.8rem 0; }
.verdict.kept { background: #e3f4e8; color: #1c6b36; }
.verdict.broken { background: #fbe3e3; color: #9c1c1c; }
.quiet { color: #68707c; font-size: 0.85rem; }
table { border-collapse: collapse; margin: 0.6rem 0; }
th, td { text-align: left; padding: 0.18rem 1rem 0.18rem 0; vertical-align: top; }
th { font-size: 0.85rem; color: #68707c; font-weight: 600; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.section td { font-weight: 600; padding-top: 0.9rem; }
td.kept { color: #1c6b36; } td.broken { color: #9c1c1c; font-weight: 700; }
img, svg { max-width: 100%; height: auto; display: block; margin: 0.8rem 0; }
.cards { display: flex; flex-wrap: wrap; gap: 0.8rem; margin: 1rem 0; }
.card { background: #f1f4f8; border-radius: 6px; padding: 0.5rem 0.9rem; min-width: 7rem; }
.card b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.card span { color: #68707c; font-size: 0.82rem; }
figure { margin: 1.2rem 0; }
figcaption { max-width: 50rem; }
pre { background: #f1f4f8; padding: 0.7rem 1rem; border-radius: 6px; overflow-x: auto; }
tr.fall td { color: #9c1c1c; }
tr.move td { color: #5b3a8e; }
"""

CAPTIONS: Final = {
    "flow": "Handlers and watchers keep up with publishing. While B3 was down, no event could pass "
    "the middle of the tree; afterwards all clients caught up. Spark archives in micro-batches; "
    "each diamond is one transaction in which it published its running counts.",
    "hands": "Each row is a lot: a range of cases. A change of colour is a transaction that ends "
    "one handler's subscription to the lot and begins another's, at one point of every stream. At "
    f"the dashed line, {FOLLOWER} moved to {FOLLOWED}, with the lots that it had.",
    "delays": "B3, which connects all other brokers, was down for a while: events published during "
    "that time arrived late, and none was lost.",
    "steps": "From the archive: how long the steps of the workflow took.",
    "handovers": "From the archive: which agents pass cases on to which others.",
    "outliers": "From the archive: steps that took much longer than the same step before.",
}


def page(told: StoryOutcome, found: Sequence[Promise], drawn: Mapping[str, Path]) -> str:
    kept = promises.kept(found)
    verdict = "Every promise was kept." if kept else "A promise is broken."
    mark = "kept" if kept else "broken"
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(told.timeline.began))
    about = escape(f"{began}, {told.took_s:.0f} s. {figures.describe_machine()}")
    parts = [
        f'<div class="verdict {mark}">{verdict}</div>',
        _cards(told),
        "<h2>What happened</h2>",
        _happened(told),
        _overlay_svg(),
        _timeline(told),
        *(_picture(drawn, name) for name in ("flow", "hands", "delays")),
        "<h2>The promises</h2>",
        _promises(found),
        _findings(told),
        "<h2>What Spark found in the workflow</h2>",
        _insight(told),
        *(_picture(drawn, name) for name in ("steps", "handovers", "outliers")),
        "<h2>Next steps</h2>",
        _further(told),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Motet: the demo</title><style>{STYLE}</style></head><body><main>"
        f'<h1>Motet: a workflow, five brokers, and Spark</h1><p class="quiet">{about}</p>'
        + "\n".join(parts)
        + "</main></body></html>\n"
    )


def _cards(told: StoryOutcome) -> str:
    deliveries = told.heard.handled + sum(map(len, told.heard.watched.values()))
    shown = {
        "events of the log": f"{len(told.script):,}",
        "deliveries": f"{deliveries:,}",
        "transactions": f"{len(told.moves.done) + len(told.written):,}",
        "archived by Spark": f"{len(told.archived):,}",
        f"s without {MIDDLE}": f"{told.timeline.down_s:.1f}",
    }
    cards = (
        f'<div class="card"><b>{b}</b><span>{escape(a)}</span></div>' for a, b in shown.items()
    )
    return f'<div class="cards">{"".join(cards)}</div>'


def _happened(told: StoryOutcome) -> str:
    lots, moves = len(told.script.lots), len(told.moves.done)
    source = escape(told.source[:1].upper() + told.source[1:])
    return f"""<p>{source}, {len(told.script):,} events of {told.script.cases:,} cases, was
published by three clients, at B1, B2 and B3, within {told.wish.seconds:g} seconds. Its cases
were divided into {lots} lots. At first the client “desk” handled all lots. A dispatcher handed
them to agents one by one, in dynamic transactions; plans handed all of them back to the desk at
once: {moves} transactions, while publishing continued. Each event had to reach exactly one
handler. Two watchers also received all events, and had to see them in the same order.</p>
{_moved(told)}
<p>Meanwhile Spark read the published events with a filter that brokers apply, and archived them.
It also kept running counts and published each result to subscribers as one transaction, at B5.
Then B3 was killed: the broker that connects all others and decides transactions.</p>"""


def _moved(told: StoryOutcome) -> str:
    move = told.move
    if move is None:
        return ""
    took = f"{move.took_s * 1e3:,.0f} milliseconds"
    return f"""<p>Agent “{move.agent}” moved from {move.source} to {move.target} while its lots
could change hands. It took {took}. Nothing that it was owed may be missing, doubled or out of
order, and no other client may notice.</p>"""


def _timeline(told: StoryOutcome) -> str:
    rows = []
    for at_s, what in told.timeline.moments:
        mark = ' class="fall"' if "killed" in what else ""
        mark = ' class="move"' if "moves from" in what else mark
        rows.append(f'<tr{mark}><td class="number">{at_s:.1f} s</td><td>{escape(what)}</td></tr>')
    return f"<table>{''.join(rows)}</table>"


def _picture(drawn: Mapping[str, Path], name: str) -> str:
    if name not in drawn:
        return ""
    data = base64.b64encode(drawn[name].read_bytes()).decode()
    words = escape(CAPTIONS[name])
    image = f'<img alt="{words}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption class='quiet'>{words}</figcaption></figure>"


def _promises(found: Sequence[Promise]) -> str:
    rows = []
    for section, some in groupby(found, lambda each: each.section):
        rows.append(f'<tr class="section"><td colspan="5">{escape(section)}</td></tr>')
        for each in some:
            mark = {True: "kept", False: "broken", None: ""}[each.kept]
            rows.append(
                f'<tr><td>{escape(each.name)}</td><td class="number">{each.shown}</td>'
                f'<td class="number">{each.shown_goal}</td><td class="{mark}">{mark}</td>'
                f'<td class="quiet">{escape(each.remark)}</td></tr>'
            )
    head = "<th></th><th class='number'>count</th><th class='number'>goal</th><th></th><th></th>"
    return f"""<p>All events of the log were known before publishing began. The first counts
therefore compare the events that each client received with the log, one by one, including their
attributes. The last counts are those of the audit: Spark checked the histories that brokers and
clients recorded.</p><table><tr>{head}</tr>{"".join(rows)}</table>"""


def _findings(told: StoryOutcome) -> str:
    if told.audit is None or told.audit.is_clean:
        return ""
    items = []
    for each in told.audit.findings:
        proofs = "".join(f"<li>{escape(text)}</li>" for text in each.examples)
        what = f"{each.guarantee}, {each.kind}: {each.count:,}"
        items.append(f"<p><b>{escape(what)}</b></p><ul>{proofs}</ul>")
    return "<h2>Violations found by the audit</h2>" + "".join(items)


def _insight(told: StoryOutcome) -> str:
    report = told.report
    if report is None:
        return ""
    return f"""<p>{report.events:,} events of {report.cases:,} cases; {report.open_count:,} cases
are open, {report.outlier_count:,} steps took unusually long. All subscribers to
<code>insight = 'step'</code> received the table of steps in one transaction.</p>"""


def _further(told: StoryOutcome) -> str:
    folder = escape(str(told.wish.folder))
    return f"""<p>All files of this run are in <code>{folder}</code>.</p><pre>
motet pipeline audit {folder}/history        # repeat the audit
motet pipeline insight {folder}/archive      # tables and pictures of the workflow
motet pipeline replay {folder}/archive …     # publish the events again, at any speed
motet up {folder}/overlay/topology.toml --dir {folder}/overlay
                                             # restart the brokers with their state and logs
motet log read URL "case is not null"        # events in the log of one broker
motet demo --log FILE                        # the demo with your own log: XES, CSV, Parquet
motet chaos                                  # kill, pause and disconnect brokers at random
</pre>"""


# ── the overlay with its clients ──────────────────────────────────────────────────────────

PLACES: Final = {"B1": (250, 60), "B2": (250, 220), "B3": (400, 140), "B4": (550, 60),
                 "B5": (550, 220)}  # fmt: skip
SIZE: Final = (800, 280)
RADIUS: Final = 24
LINE: Final = 15
FONT: Final = "system-ui, DejaVu Sans, sans-serif"


def _overlay_svg() -> str:
    """Brokers, links, and beside each broker its clients."""
    width, height = SIZE
    parts = []
    for one, other in ((one, other) for one, links in LINKS.items() for other in links):
        (x1, y1), (x2, y2) = PLACES[one], PLACES[other]
        ends = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
        parts.append(f'<line {ends} stroke="#9aa4b1" stroke-width="3"/>')
    for name, (x, y) in PLACES.items():
        colour = FALL if name == MIDDLE else BLUE
        parts.append(f'<circle cx="{x}" cy="{y}" r="{RADIUS}" fill="{colour}"/>')
        parts.append(_text(x, y + 5, name, "white", "middle", bold=True))
        parts += _clients(name, x, y)
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="five brokers, B3 in the middle" font-family="{FONT}" font-size="13">'
        + "".join(parts)
        + "</svg>"
    )


def _clients(name: str, x: int, y: int) -> list[str]:
    found = [client for client, home in HOMES.items() if home == name]
    if name == HOMES[FOLLOWER]:
        found[found.index(FOLLOWER)] = f"{FOLLOWER}, before its move"
    if name == FOLLOWED:
        found.append(f"{FOLLOWER}, after its move")
    if name in PUBLISHED_AT:
        found = ["publisher", *found, "→ Spark reads"]
    if name == WRITTEN_AT:
        found.append("← Spark writes")
    if name == MIDDLE:
        found.append("killed and restarted")
        side, anchor, top = 0, "middle", y + RADIUS + LINE + 3
    else:
        side, anchor = (-1, "end") if x < PLACES[MIDDLE][0] else (1, "start")
        top = y + 5 - (len(found) - 1) * LINE // 2
    return [
        _text(x + side * (RADIUS + 10), top + at * LINE, each, colour, anchor)
        for at, each in enumerate(found)
        for colour in [_colour_of(each)]
    ]


def _colour_of(told: str) -> str:
    marks = {"Spark": ORANGE, "killed": FALL, "move": MOVED}
    return next((colour for mark, colour in marks.items() if mark in told), INK)


def _text(x: float, y: float, text: str, colour: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="700"' if bold else ""
    return f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}"{weight}>{text}</text>'


# ── pictures ──────────────────────────────────────────────────────────────────────────────

WIDTH_IN: Final = 9.0
PURPLE: Final = "#7b52ab"
COLOURS: Final = {DESK: "#c9ced6", "anna": BLUE, "ben": ORANGE, "carla": GREEN}
FEW_S: Final = 1.0
"""The interval over which delays are aggregated."""
LEAST_S: Final = 1e-4
"""Clocks are read in two processes: shorter delays mean nothing."""


def draw(told: StoryOutcome, folder: Path) -> dict[str, Path]:
    """All pictures, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {"flow": _flow(told), "hands": _hands(told), "delays": _delays(told)}
    drawn = {name: save(figure, folder / f"{name}.png") for name, figure in made.items()}
    if told.report is not None:
        drawn |= {path.stem: path for path in pictures.draw(told.report, folder)}
    return drawn


def _blank(height_in: float) -> tuple[Any, Any]:
    figure, axes = sheet(WIDTH_IN, height_in)
    rule(axes[0, 0])
    return figure, axes[0, 0]


def _fallen(told: StoryOutcome, axis: Any) -> None:
    """Shade the time during which the broker in the middle was down."""
    timeline, begin_s = told.timeline, told.timeline.began_flowing_s
    if timeline.killed_at_s is not None and timeline.back_at_s is not None:
        killed_s, back_s = timeline.killed_at_s - begin_s, timeline.back_at_s - begin_s
        shade = {"color": FALL, "alpha": 0.13, "linewidth": 0}
        axis.axvspan(killed_s, back_s, label=f"{MIDDLE} is down", **shade)
        axis.axvline(killed_s, color=FALL, linewidth=1.2)


def _followed(told: StoryOutcome, axis: Any) -> None:
    """Mark the time at which an agent moved to another broker."""
    if (move := told.move) is not None:
        at_s = move.ended_s - told.timeline.began_flowing_s
        label = f"{move.agent} moves, {move.source} to {move.target}"
        axis.axvline(at_s, color=MOVED, linewidth=1.6, linestyle=(0, (4, 2)), label=label)


def _finished(figure: Any, axis: Any, title: str, columns: int = 3) -> None:
    axis.set_title(title, fontsize=11, loc="left", color=INK)
    axis.set_xlabel("seconds since the first event", fontsize=9)
    axis.set_xlim(left=0.0)
    shown = axis.get_legend_handles_labels()
    figure.legend(*shown, fontsize=8, frameon=False, loc="outside lower center", ncols=columns)


def _flow(told: StoryOutcome) -> Any:
    """The progress of all parts over time."""
    figure, axis = _blank(3.8)
    samples, begin_s = told.timeline.samples, told.timeline.began_flowing_s
    times = [each.at_s - begin_s for each in samples]
    _fallen(told, axis)
    _followed(told, axis)
    axis.plot(times, [s.published for s in samples], color=INK, lw=1.0, ls="--", label="published")
    axis.plot(times, [s.handled for s in samples], color=BLUE, lw=2.0, label="handled")
    axis.plot(times, [s.watched for s in samples], color=GREEN, lw=1.4, label="seen in total order")
    archived = [s.archived for s in samples]
    axis.step(times, archived, color=ORANGE, lw=1.8, where="post", label="archived by Spark")
    back = _written_back(told)
    if back:
        style = {"ls": "", "marker": "D", "ms": 6, "mfc": "white", "mec": PURPLE, "mew": 1.5}
        when, counts = [at_s - begin_s for at_s, _ in back], [count for _, count in back]
        axis.plot(when, counts, label="counted in a result of Spark", **style)
    axis.set_ylabel("events", fontsize=9)
    axis.set_ylim(bottom=0)
    title = "Progress of publishing, handling, watching and archiving"
    _finished(figure, axis, title, columns=4)
    return figure


def _written_back(told: StoryOutcome) -> list[tuple[float, int]]:
    """When each running result came, and how many events it counts."""
    totals: dict[str, tuple[float, int]] = {}
    for each in told.heard.insight:
        count = each.attributes.get("events")
        if isinstance(count, int):
            at_s, before = totals.get(each.transaction, (each.at - told.timeline.began, 0))
            totals[each.transaction] = (at_s, before + count)
    return list(totals.values())


def _hands(told: StoryOutcome) -> Any:
    """The handler of each lot over time."""
    lots = [lot.name for lot in told.script.lots]
    figure, axis = _blank(1.4 + 0.24 * max(len(lots), 4))
    begin_s, end_s = told.timeline.began_flowing_s, told.timeline.samples[-1].at_s
    for row, lot in enumerate(lots):
        since_s, holder = begin_s, DESK
        moves = [(each.ended_s, each.new) for each in told.moves.done if lot in each.lots]
        for until_s, new in [*moves, (end_s, "")]:
            colour = COLOURS[holder]
            axis.barh(row, until_s - since_s, left=since_s - begin_s, color=colour, height=0.82)
            since_s, holder = until_s, new
    _fallen(told, axis)
    _followed(told, axis)
    for name in HANDLERS:
        axis.barh(0, 0, color=COLOURS[name], label=name)
    axis.grid(visible=False)
    axis.set_yticks(range(len(lots)), lots, fontsize=8)
    axis.set_ylim(len(lots) - 0.4, -0.6)
    count = len(told.moves.done)
    title = f"The handler of each lot: {count} transactions while events were published"
    _finished(figure, axis, title, columns=6)
    axis.set_xlim(right=end_s - begin_s)
    return figure


def _delays(told: StoryOutcome) -> Any:
    """The delays of events."""
    figure, axis = _blank(3.2)
    _fallen(told, axis)
    _followed(told, axis)
    handled = [each for stretch in told.heard.stretches for each in stretch.arrivals]
    watched = [each for came in told.heard.watched.values() for each in came]
    sides = ((handled, BLUE, "handlers"), (watched, GREEN, "watchers, in total order"))
    for arrivals, colour, name in sides:
        found = _summed(told, arrivals)
        times, middle, high = ([each[at] for each in found] for at in range(3))
        axis.plot(times, middle, color=colour, lw=1.8, label=f"{name}: median")
        axis.plot(times, high, color=colour, lw=0.9, ls=":", label=f"{name}: 99th percentile")
    axis.set_yscale("log")
    axis.set_ylabel("milliseconds", fontsize=9)
    _finished(figure, axis, "Delay of events, from their due time to their arrival")
    return figure


def _summed(told: StoryOutcome, arrivals: Sequence[EventSeen]) -> list[tuple[float, float, float]]:
    """By due time: median and 99th percentile of the delay of events, in milliseconds. This
    includes delays of the publisher."""
    begin = told.timeline.began + told.timeline.began_flowing_s
    parts: dict[int, list[float]] = {}
    for each in arrivals:
        due_s = told.script.due.get(each.key)
        if due_s is not None:
            due_s *= told.wish.seconds
            late_ms = max(each.at - begin - due_s, LEAST_S) * 1e3
            parts.setdefault(int(due_s / FEW_S), []).append(late_ms)
    found = []
    for part, delays in sorted(parts.items()):
        delays.sort()
        middle, high = delays[len(delays) // 2], delays[len(delays) * 99 // 100]
        found.append(((part + 0.5) * FEW_S, middle, high))
    return found
