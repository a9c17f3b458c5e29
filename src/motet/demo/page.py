"""The report as one page: no file beside it, nothing from elsewhere."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from motet.bench import figures
from motet.demo import layout, promises
from motet.demo.promises import Promise

if TYPE_CHECKING:
    from motet.demo.outcome import Outcome

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
"""

CAPTIONS: Final = {
    "flow": "Handlers and watchers keep up with publishing. While B3 was away, nothing could pass "
    "the middle of the tree; then everybody caught up. Spark archives in steps, and each diamond "
    "is a transaction with which it wrote back how much it had counted.",
    "hands": "Each row is a lot: a range of cases. A change of colour is a transaction in which "
    "one handler lets a lot go and another takes it, at one point of every stream.",
    "delays": "The broker that all goes through was away for a while: what was published then came "
    "late, and none of it was lost.",
    "steps": "From the archive: how long the steps of the workflow took.",
    "handovers": "From the archive: who passes cases on to whom.",
    "outliers": "From the archive: what took much longer than the same step had taken before.",
}


def write(told: Outcome, found: Sequence[Promise], drawn: Mapping[str, Path], file: Path) -> None:
    file.write_text(page(told, found, drawn), encoding="utf-8")


def page(told: Outcome, found: Sequence[Promise], drawn: Mapping[str, Path]) -> str:
    kept = promises.kept(found)
    verdict = "Every promise was kept." if kept else "A promise is broken."
    mark = "kept" if kept else "broken"
    parts = [
        f'<div class="verdict {mark}">{verdict}</div>',
        _cards(told),
        "<h2>What happened</h2>",
        _happened(told),
        layout.svg(),
        _timeline(told),
        *(_picture(drawn, name) for name in ("flow", "hands", "delays")),
        "<h2>The promises</h2>",
        _promises(found),
        _findings(told),
        "<h2>What Spark found in the workflow</h2>",
        _insight(told),
        *(_picture(drawn, name) for name in ("steps", "handovers", "outliers")),
        "<h2>Looking further</h2>",
        _further(told),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Motet: the demo</title><style>{STYLE}</style></head><body><main>"
        f"<h1>Motet: a workflow, five brokers, and Spark</h1>{_when(told)}"
        + "\n".join(parts)
        + "</main></body></html>\n"
    )


def _when(told: Outcome) -> str:
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(told.chronicle.began))
    about = f"{began}, {told.took_s:.0f} s. {figures.describe_machine()}"
    return f'<p class="quiet">{escape(about)}</p>'


def _cards(told: Outcome) -> str:
    chronicle = told.chronicle
    away_s = (chronicle.back_at_s or 0.0) - (chronicle.killed_at_s or 0.0)
    deliveries = told.heard.handled + sum(map(len, told.heard.watched.values()))
    shown = {
        "events of the log": f"{len(told.script):,}",
        "deliveries": f"{deliveries:,}",
        "transactions": f"{len(told.moves.done) + len(told.written):,}",
        "archived by Spark": f"{len(told.archived):,}",
        "s without the middle": f"{away_s:.1f}",
    }
    cards = (
        f'<div class="card"><b>{b}</b><span>{escape(a)}</span></div>' for a, b in shown.items()
    )
    return f'<div class="cards">{"".join(cards)}</div>'


def _happened(told: Outcome) -> str:
    lots, moves = len(told.script.lots), len(told.moves.done)
    source = escape(told.source[:1].upper() + told.source[1:])
    return f"""<p>{source}, {len(told.script):,} events of {told.script.cases:,} cases, was
published by three clients, at B1, B2 and B3, within {told.wish.seconds:g} seconds. Its cases
were divided into {lots} lots. A desk had all of them at first; a dispatcher handed them to agents,
one by one in dynamic transactions, and the desk took them back, all at once in plans:
{moves} transactions, while events kept coming. Each event had to reach exactly one
handler. Two watchers saw all events as well, and had to see them in the same order.</p>
<p>Meanwhile Spark read what was published, by a filter that brokers apply, and archived it; and it
counted along and wrote each result back as one transaction, through B5, to whoever subscribes.
Then B3 was killed: the broker that everything goes through, and that decides transactions.</p>"""


def _timeline(told: Outcome) -> str:
    rows = []
    for each in told.chronicle.moments:
        mark = ' class="fall"' if "killed" in each.what else ""
        rows.append(
            f'<tr{mark}><td class="number">{each.at_s:.1f} s</td><td>{escape(each.what)}</td></tr>'
        )
    return f"<table>{''.join(rows)}</table>"


def _picture(drawn: Mapping[str, Path], name: str) -> str:
    if name not in drawn:
        return ""
    data = base64.b64encode(drawn[name].read_bytes()).decode()
    words = escape(CAPTIONS[name])
    image = f'<img alt="{words}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption class='quiet'>{words}</figcaption></figure>"


def _promises(found: Sequence[Promise]) -> str:
    rows, section = [], ""
    for each in found:
        if each.section != section:
            section = each.section
            rows.append(f'<tr class="section"><td colspan="5">{escape(section)}</td></tr>')
        mark = {True: "kept", False: "broken", None: ""}[each.kept]
        rows.append(
            f'<tr><td>{escape(each.name)}</td><td class="number">{promises.number(each)}</td>'
            f'<td class="number">{promises.goal(each)}</td><td class="{mark}">{mark}</td>'
            f'<td class="quiet">{escape(each.remark)}</td></tr>'
        )
    head = "<th></th><th class='number'>count</th><th class='number'>goal</th><th></th><th></th>"
    return f"""<p>What the log has to say was known before anything was published. So the first
counts are a plain comparison of what everybody got with that, event by event, attributes included.
The last ones are the audit's: Spark has judged what brokers and clients wrote down while they
ran.</p><table><tr>{head}</tr>{"".join(rows)}</table>"""


def _findings(told: Outcome) -> str:
    if told.audit is None or told.audit.is_clean:
        return ""
    items = []
    for each in told.audit.findings:
        proofs = "".join(f"<li>{escape(text)}</li>" for text in each.examples)
        what = f"{each.guarantee}, {each.kind}: {each.count:,}"
        items.append(f"<p><b>{escape(what)}</b></p><ul>{proofs}</ul>")
    return "<h2>What proves it</h2>" + "".join(items)


def _insight(told: Outcome) -> str:
    report = told.report
    if report is None:
        return ""
    said = (
        f"{report.events:,} events of {report.cases:,} cases; {report.open_count:,} cases are "
        f"open, {report.outlier_count:,} steps took unusually long. Everybody who subscribes to "
        "<code>insight = 'step'</code> got the table of steps, in one transaction."
    )
    return f"<p>{said}</p>"


def _further(told: Outcome) -> str:
    folder = escape(str(told.wish.folder))
    return f"""<p>All that was written is in <code>{folder}</code>.</p><pre>
motet pipeline audit {folder}/history        # judge it again
motet pipeline insight {folder}/archive      # tables and pictures of the workflow
motet pipeline replay {folder}/archive …     # publish it again, at any speed
motet up {folder}/overlay/topology.toml --dir {folder}/overlay
                                             # the same brokers, with all they know
motet log read URL "case is not null"        # what one of them has
motet demo --log FILE                        # the same with a log of yours: XES, CSV, Parquet
motet chaos                                  # brokers killed, paused and cut off at random
</pre>"""
