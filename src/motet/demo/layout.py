"""The overlay and who is where, as SVG."""

from __future__ import annotations

from typing import Final

from motet.demo.cast import HOMES
from motet.demo.overlay import LINKS, MIDDLE, PUBLISHED_AT, WRITTEN_AT

PLACES: Final = {"B1": (250, 60), "B2": (250, 220), "B3": (400, 140), "B4": (550, 60),
                 "B5": (550, 220)}  # fmt: skip
SIZE: Final = (800, 280)
RADIUS: Final = 24
LINE: Final = 15
INK, FALL, BLUE, ORANGE = "#23272e", "#c62f2f", "#1f5fa8", "#d9731a"
FONT: Final = "system-ui, DejaVu Sans, sans-serif"


def svg() -> str:
    """Brokers, links, and beside each broker its clients."""
    width, height = SIZE
    parts = [_link(one, other) for one, links in LINKS.items() for other in links]
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


def clients_at(broker: str) -> list[str]:
    found = [name for name, home in HOMES.items() if home == broker]
    if broker in PUBLISHED_AT:
        found = ["publisher", *found, "→ Spark reads"]
    if broker == WRITTEN_AT:
        found.append("← Spark writes")
    return found


def _clients(name: str, x: int, y: int) -> list[str]:
    found = clients_at(name)
    if name == MIDDLE:
        top = y + RADIUS + LINE + 3
        texts = [*found, "killed, and back"]
        return [
            _text(x, top + at * LINE, each, _colour(each), "middle")
            for at, each in enumerate(texts)
        ]
    side, anchor = (-1, "end") if x < PLACES[MIDDLE][0] else (1, "start")
    top = y + 5 - (len(found) - 1) * LINE // 2
    return [
        _text(x + side * (RADIUS + 10), top + at * LINE, each, _colour(each), anchor)
        for at, each in enumerate(found)
    ]


def _colour(text: str) -> str:
    if "Spark" in text:
        return ORANGE
    return FALL if "killed" in text else INK


def _link(one: str, other: str) -> str:
    (x1, y1), (x2, y2) = PLACES[one], PLACES[other]
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#9aa4b1" stroke-width="3"/>'


def _text(x: float, y: float, text: str, colour: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="700"' if bold else ""
    return f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}"{weight}>{text}</text>'
