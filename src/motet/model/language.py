"""The filter language: a parser from text to clauses, and a printer back to text.

    filter     = conjunction { "or" conjunction }
    conjunction = primary { "and" primary }
    primary    = "(" filter ")" | "true" | "false" | predicate
    predicate  = name compare value | value compare name
               | name "between" value "and" value
               | name "in" "(" value { "," value } ")"
               | name "like" string
               | name "is" [ "not" ] "null"
    value      = number | string | "true" | "false" | "timestamp" string

The tokenizer looks at every character a bounded number of times, without regular expressions. The
parser goes left to right once, with bounded nesting, and distributes `and` over `or` on the way.
Printed text is canonical, and parses to an equal filter.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import Enum, auto
from math import inf
from sys import intern
from typing import Final, NamedTuple

from motet.errors import FilterError, FilterTooComplex
from motet.model import sets
from motet.model.ids import is_name
from motet.model.limits import (
    INT_MAX,
    INT_MIN,
    MAX_FILTER_CHARS,
    MAX_FILTER_DEPTH,
    MAX_IN_LIST,
    MAX_NAME_CHARS,
    MAX_PREDICATES,
)
from motet.model.sets import (
    ABSENT,
    EVERYTHING,
    NOTHING,
    PRESENT,
    Clause,
    Clauses,
    Constraint,
    Points,
    Range,
    conjoin,
    disjoin,
    is_prefix,
    shape,
)
from motet.model.values import Family, Value, parse_timestamp, show_timestamp

# ── tokens ───────────────────────────────────────────────────────────────────────────────


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
        """A bare word in lower case, because keywords are case-insensitive; '' for other tokens."""
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
    "-": "a minus sign must be followed by a number",
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


# ── parser ───────────────────────────────────────────────────────────────────────────────

_COMPARE: Final[dict[str, Callable[[Value], Constraint]]] = {
    "=": sets.equal,
    "==": sets.equal,
    "!=": sets.unequal,
    "<>": sets.unequal,
    "<": sets.below,
    "<=": sets.at_most,
    ">": sets.above,
    ">=": sets.at_least,
}
_MIRROR: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NOT: Final = (
    "'not' is not supported: write the opposite comparison (not x > 5 is x <= 5, not in (1, 2) is "
    "x <> 1 and x <> 2), or 'is null' and 'is not null' for presence"
)


def parse(text: str) -> Clauses:
    if len(text) > MAX_FILTER_CHARS:
        raise FilterTooComplex(
            f"a filter has at most {MAX_FILTER_CHARS} characters, this one {len(text)}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = "a lone surrogate cannot be encoded as UTF-8"
        shown = text.encode(errors="replace").decode()  # one for one: columns stay right
        raise FilterError(problem, shown, error.start + 1) from None
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokenize(text)
        self.at = 0
        self.depth = 0
        self.predicates = 0

    # ── moving ───────────────────────────────────────────────────────────────────────────

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.tokens[self.at]
        self.at += token.kind is not Kind.END
        return token

    def takes_word(self, word: str) -> bool:
        found = self.token.word == word
        self.at += found
        return found

    def takes_symbol(self, symbol: str) -> bool:
        found = self.token.kind is Kind.SYMBOL and self.token.text == symbol
        self.at += found
        return found

    def at_end(self) -> bool:
        return self.token.kind is Kind.END

    def error(self, problem: str, token: Token | None = None) -> FilterError:
        return FilterError(problem, self.text, (token or self.token).column)

    # ── structure ────────────────────────────────────────────────────────────────────────

    def whole(self) -> Clauses:
        if self.at_end():
            raise self.error("an empty text is no filter; write true to match every event")
        clauses = self.filter()
        if not self.at_end():
            raise self.error(f"expected 'and', 'or' or the end, found {self.token}")
        return clauses

    def filter(self) -> Clauses:
        start = self.token
        operands = [self.conjunction()]
        while self.takes_word("or"):
            operands.append(self.conjunction())
        return operands[0] if len(operands) == 1 else self.combined(disjoin, operands, start)

    def conjunction(self) -> Clauses:
        start = self.token
        operands = [self.primary()]
        while self.takes_word("and"):
            operands.append(self.primary())
        return operands[0] if len(operands) == 1 else self.combined(conjoin, operands, start)

    def combined(
        self, combine: Callable[[list[Clauses]], Clauses], operands: list[Clauses], start: Token
    ) -> Clauses:
        try:
            return combine(operands)
        except FilterTooComplex as error:
            raise FilterTooComplex(error.problem, self.text, start.column) from None

    def primary(self) -> Clauses:
        if not self.takes_symbol("("):
            return self.predicate()
        opening = self.tokens[self.at - 1]
        self.depth += 1
        if self.depth > MAX_FILTER_DEPTH:
            problem = f"parentheses nest at most {MAX_FILTER_DEPTH} deep"
            raise FilterTooComplex(problem, self.text, opening.column)
        clauses = self.filter()
        if not self.takes_symbol(")"):
            raise self.error(
                f"expected ')' for the '(' at column {opening.column}, found {self.token}"
            )
        self.depth -= 1
        return clauses

    # ── predicates ───────────────────────────────────────────────────────────────────────

    def predicate(self) -> Clauses:
        start = self.token
        self.predicates += 1
        if self.predicates > MAX_PREDICATES:
            problem = f"a filter has at most {MAX_PREDICATES} predicates"
            raise FilterTooComplex(problem, self.text, start.column)
        if start.word == "not":
            raise self.error(_NOT)
        if self.at_value():
            return self.value_first()
        name = self.name()
        constraint = self.constraint()
        return NOTHING if constraint.is_empty else sets.predicate(name, constraint)

    def value_first(self) -> Clauses:
        start = self.token
        value = self.value()
        operator = self.token.text if self.token.kind is Kind.SYMBOL else ""
        if operator not in _COMPARE:
            if value is True:
                return EVERYTHING
            if value is False:
                return NOTHING
            raise self.error(f"expected a comparison after the value, found {self.token}")
        self.take()
        if self.at_value():
            raise self.error("one side of a comparison must be an attribute name", start)
        compare = _COMPARE[_MIRROR.get(operator, operator)]
        return sets.predicate(self.name(), self.built(compare, value, start))

    def name(self) -> str:
        token = self.take()
        if token.kind not in (Kind.NAME, Kind.QUOTED_NAME):
            raise self.error(f"expected an attribute name, found {token}", token)
        if token.word in KEYWORDS and token.word != "timestamp":
            raise self.error(
                f'expected an attribute name, found the keyword {token}; quote it as "{token}" '
                "if an attribute is called so",
                token,
            )
        if not is_name(token.text):
            raise self.error(
                f"attribute names have at most {MAX_NAME_CHARS} ASCII letters, digits, '_' and "
                "'.', and do not start with a digit",
                token,
            )
        return intern(token.text)

    def constraint(self) -> Constraint:
        operator = self.take()
        if operator.kind is Kind.SYMBOL and operator.text in _COMPARE:
            start = self.token
            return self.built(_COMPARE[operator.text], self.value(), start)
        match operator.word:
            case "is":
                return self.presence()
            case "between":
                return self.between()
            case "in":
                return self.listed()
            case "like":
                return self.like()
            case "not":
                raise self.error(_NOT, operator)
        if operator.word in ("and", "or") or operator.kind is Kind.END or operator.text == ")":
            raise self.error(
                f"an attribute alone is no predicate; compare it, like = true, before {operator}",
                operator,
            )
        raise self.error(
            f"expected a comparison, 'between', 'in', 'like' or 'is', found {operator}", operator
        )

    def presence(self) -> Constraint:
        negated = self.takes_word("not")
        if not self.takes_word("null"):
            raise self.error(
                f"expected 'null', found {self.token}; write = to compare with a value"
            )
        return sets.PRESENT if negated else sets.ABSENT

    def between(self) -> Constraint:
        start = self.token
        low = self.value()
        if not self.takes_word("and"):
            raise self.error(f"expected 'and' and the upper end of 'between', found {self.token}")
        high = self.value()
        return self.built(lambda low: sets.between(low, high), low, start)

    def listed(self) -> Constraint:
        if not self.takes_symbol("("):
            raise self.error(f"expected '(' after 'in', found {self.token}")
        start = self.token
        values = [self.value()]
        while self.takes_symbol(","):
            values.append(self.value())
            if len(values) > MAX_IN_LIST:
                problem = f"'in' takes at most {MAX_IN_LIST} values"
                raise FilterTooComplex(problem, self.text, start.column)
        if not self.takes_symbol(")"):
            raise self.error(f"expected ',' or ')' in the list, found {self.token}")
        return sets.one_of(values)

    def like(self) -> Constraint:
        token = self.take()
        if token.kind is not Kind.STRING:
            raise self.error(f"expected a pattern like 'abc%' after 'like', found {token}", token)
        return self.built(sets.like, token.text, token)

    def built(
        self,
        build: Callable[[Value], Constraint] | Callable[[str], Constraint],
        value: Value,
        token: Token,
    ) -> Constraint:
        """The constraint, or its error with the position of the token."""
        try:
            return build(value)  # type: ignore[arg-type]
        except FilterError as error:
            raise self.error(error.problem, token) from None

    # ── values ───────────────────────────────────────────────────────────────────────────

    def at_value(self) -> bool:
        token = self.token
        if token.kind in (Kind.STRING, Kind.NUMBER):
            return True
        if token.word == "timestamp":
            return self.tokens[self.at + 1].kind is Kind.STRING
        return token.word in ("true", "false", "null", "nan", "infinity")

    def value(self) -> Value:
        token = self.take()
        if token.kind is Kind.STRING:
            return token.text
        if token.kind is Kind.NUMBER:
            return token.number
        match token.word:
            case "true":
                return True
            case "false":
                return False
            case "infinity":
                return inf
            case "nan":
                raise self.error(sets.NO_NAN, token)
            case "null":
                raise self.error(sets.NO_NULL, token)
            case "timestamp" if self.token.kind is Kind.STRING:
                return self.timestamp()
            case "not":
                raise self.error(_NOT, token)
        if token.kind in (Kind.NAME, Kind.QUOTED_NAME):
            raise self.error(
                "an attribute is compared with values only, not with another attribute; "
                "quote text like 'this'",
                token,
            )
        raise self.error(f"expected a value, found {token}", token)

    def timestamp(self) -> datetime:
        token = self.take()
        try:
            return parse_timestamp(token.text, exact=True)
        except ValueError as error:
            raise self.error(str(error), token) from None


# ── printer ──────────────────────────────────────────────────────────────────────────────

KEYWORDS: Final = frozenset(
    {"and", "between", "false", "in", "infinity", "is", "like", "nan", "not", "null", "or"}
    | {"timestamp", "true"}
)
"""Words that an attribute name may be only if it is quoted."""

_WHOLE_FAMILY: Final = {
    Family.NUMBER: "<= infinity",
    Family.TEXT: "like '%'",
    Family.TIME: ">= timestamp '0001-01-01T00:00:00Z'",
}


def show(clauses: tuple[Clause, ...]) -> str:
    return " or ".join(map(show_clause, clauses)) or "false"


def show_clause(clause: Clause) -> str:
    if not clause.constraints:
        return "true"
    predicates: list[str] = []
    for name, constraint in clause.constraints:
        subject = show_name(name)
        predicates += (f"{subject} {said}" for said in _say(constraint))
    return " and ".join(predicates)


def show_name(name: str) -> str:
    return f'"{name}"' if name.lower() in KEYWORDS else name


def show_value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime):
        return f"timestamp '{show_timestamp(value)}'"
    if value in (inf, -inf):
        return "infinity" if value > 0 else "-infinity"
    return repr(value)


def _say(constraint: Constraint) -> list[str]:
    if constraint == ABSENT:
        return ["is null"]
    if constraint == PRESENT:
        return ["is not null"]
    match shape(constraint):
        case Points((value,)):
            return [f"= {show_value(value)}"]
        case Points(values):
            return [f"in ({', '.join(map(show_value, values))})"]
        case Range() as found:
            return _say_range(found)
    raise FilterError(f"the language has no words for {constraint}")


def _say_range(found: Range) -> list[str]:
    family, low, high, low_open, high_open = found.hull
    said = [f"<> {show_value(hole)}" for hole in found.holes]
    if low is None and high is None:
        return said or [_WHOLE_FAMILY[family]]
    if is_prefix(found.hull):
        return [f"like '{_escape(str(low))}%'", *said]
    if low is not None and high is not None and not low_open and not high_open:
        return [f"between {show_value(low)} and {show_value(high)}", *said]
    bounds: list[str] = []
    if low is not None:
        bounds.append(f"{'>' if low_open else '>='} {show_value(low)}")
    if high is not None:
        bounds.append(f"{'<' if high_open else '<='} {show_value(high)}")
    return bounds + said


def _escape(prefix: str) -> str:
    for special in ("\\", "%", "_", "'"):
        prefix = prefix.replace(special, "''" if special == "'" else "\\" + special)
    return prefix
