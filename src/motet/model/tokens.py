"""The words of the filter language: text in, tokens out, each with its 1-based column.

Every character is looked at a bounded number of times; there are no regular expressions.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from motet.errors import FilterError
from motet.model.limits import INT_MAX, INT_MIN


class Kind(Enum):
    NAME = auto()
    QUOTED_NAME = auto()
    STRING = auto()
    NUMBER = auto()
    SYMBOL = auto()
    END = auto()


class Token(NamedTuple):
    kind: Kind
    text: str
    column: int
    number: int | float = 0

    @property
    def word(self) -> str:
        """A bare word in lower case, for keywords are case-insensitive; '' for anything else."""
        return self.text.lower() if self.kind is Kind.NAME else ""

    def __str__(self) -> str:
        if self.kind is Kind.END:
            return "the end"
        return f"{self.text[:40]!r}" if self.kind is Kind.STRING else self.text[:40]


_DIGITS: Final = frozenset("0123456789")
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_NAME_REST: Final = _LETTERS | _DIGITS | {"."}
_SPACE: Final = frozenset(" \t\r\n")
_QUOTES: Final = {
    "'": (Kind.STRING, "string"),
    '"': (Kind.QUOTED_NAME, "attribute name"),
    "`": (Kind.QUOTED_NAME, "attribute name"),
}
_PAIRS: Final = frozenset({"==", "!=", "<>", "<=", ">="})
_SINGLES: Final = frozenset("=<>(),")
_HINTS: Final = {
    "&": "write 'and'",
    "|": "write 'or'",
    "!": "write '<>' for not equal",
    "*": "there is no arithmetic in filters",
    "+": "there is no arithmetic in filters",
    "-": "a minus sign must stand before a number",
    "/": "there is no arithmetic in filters",
    "%": "there is no arithmetic in filters",
    ";": "a filter is a single expression",
}


def tokenize(text: str) -> list[Token]:
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char in _SPACE:
            at += 1
            continue
        if char in _LETTERS:
            end = _run(text, at + 1, _NAME_REST)
            token = Token(Kind.NAME, text[at:end], at + 1)
        elif char in _QUOTES:
            token, end = _quoted(text, at)
        elif _starts_number(text, at):
            token, end = _number(text, at)
        elif text[at : at + 2] in _PAIRS:
            end = at + 2
            token = Token(Kind.SYMBOL, text[at:end], at + 1)
        elif char in _SINGLES:
            end = at + 1
            token = Token(Kind.SYMBOL, char, at + 1)
        else:
            hint = _HINTS.get(char, "quote text as 'text' and unusual attribute names as \"name\"")
            raise FilterError(f"{char!r} has no meaning here; {hint}", text, at + 1)
        tokens.append(token)
        at = end
    tokens.append(Token(Kind.END, "", len(text) + 1))
    return tokens


def _run(text: str, at: int, allowed: frozenset[str]) -> int:
    while at < len(text) and text[at] in allowed:
        at += 1
    return at


def _quoted(text: str, start: int) -> tuple[Token, int]:
    """Up to the closing quote; a doubled quote stands for itself."""
    quote = text[start]
    kind, what = _QUOTES[quote]
    parts: list[str] = []
    at = start + 1
    while True:
        end = text.find(quote, at)
        if end < 0:
            raise FilterError(f"this {what} has no closing {quote}", text, start + 1)
        parts.append(text[at:end])
        if text[end + 1 : end + 2] != quote:
            return Token(kind, quote.join(parts), start + 1), end + 1
        at = end + 2


def _starts_number(text: str, at: int) -> bool:
    if text[at] in "+-":
        at += 1
        if text[at : at + 8].lower() == "infinity":
            return True
    if text[at : at + 1] == ".":
        at += 1
    return text[at : at + 1] in _DIGITS


def _number(text: str, start: int) -> tuple[Token, int]:
    digits = start + (text[start] in "+-")
    end = _run(text, digits, _DIGITS)
    whole = True
    if end == digits and text[end] in "iI":
        end += len("infinity")
        token = Token(Kind.NUMBER, text[start:end], start + 1, float(text[start:end]))
        return _checked_end(text, token, end)
    if text[end : end + 1] == ".":
        whole = False
        end = _run(text, end + 1, _DIGITS)
    if text[end : end + 1] in ("e", "E"):
        whole = False
        mantissa_end = end
        end += 1 + (text[end + 1 : end + 2] in ("+", "-"))
        exponent = end
        end = _run(text, end, _DIGITS)
        if end == exponent:
            raise FilterError("an exponent needs digits", text, mantissa_end + 1)
    spelled = text[start:end]
    number = _int(text, start, spelled) if whole else _float(text, start, spelled)
    return _checked_end(text, Token(Kind.NUMBER, spelled, start + 1, number), end)


def _checked_end(text: str, token: Token, end: int) -> tuple[Token, int]:
    if text[end : end + 1] in _NAME_REST:
        raise FilterError("a number must not run into a word", text, end + 1)
    return token, end


def _int(text: str, start: int, spelled: str) -> int:
    # Python refuses to read very long integers at all, so look at the length first.
    digits = spelled.lstrip("+-").lstrip("0") or "0"
    if len(digits) <= 19:
        number = -int(digits) if spelled[0] == "-" else int(digits)
        if INT_MIN <= number <= INT_MAX:
            return number
    raise FilterError(
        "integers have 64 bits; write a larger number as a float, like 1e19", text, start + 1
    )


def _float(text: str, start: int, spelled: str) -> float:
    number = float(spelled)
    if abs(number) == float("inf"):
        raise FilterError("beyond the largest float; write infinity", text, start + 1)
    return number
