"""The filter language: tokens in, clauses out.

    filter     = conjunction { "or" conjunction }
    conjunction = primary { "and" primary }
    primary    = "(" filter ")" | "true" | "false" | predicate
    predicate  = name compare value | value compare name
               | name "between" value "and" value
               | name "in" "(" value { "," value } ")"
               | name "like" string
               | name "is" [ "not" ] "null"
    value      = number | string | "true" | "false" | "timestamp" string

Parsing goes left to right once, with nesting bounded; `and` is distributed over `or` on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from math import inf
from sys import intern
from typing import Final

from motet.errors import FilterError, FilterTooComplex
from motet.model import predicates as made
from motet.model.clauses import EVERYTHING, NOTHING, Clauses, conjoin, disjoin
from motet.model.limits import (
    MAX_FILTER_CHARS,
    MAX_FILTER_DEPTH,
    MAX_IN_LIST,
    MAX_NAME_CHARS,
    MAX_PREDICATES,
)
from motet.model.printer import KEYWORDS
from motet.model.sets import Constraint
from motet.model.tokens import Kind, Token, tokenize
from motet.model.values import Value, is_name, parse_timestamp

_COMPARE: Final[dict[str, Callable[[Value], Constraint]]] = {
    "=": made.equal,
    "==": made.equal,
    "!=": made.unequal,
    "<>": made.unequal,
    "<": made.below,
    "<=": made.at_most,
    ">": made.above,
    ">=": made.at_least,
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
        shown = text.encode(errors="replace").decode()  # one sign for one: columns stay right
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
        return NOTHING if constraint.is_empty else made.predicate(name, constraint)

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
        return made.predicate(self.name(), self.built(compare, value, start))

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
        return made.PRESENT if negated else made.ABSENT

    def between(self) -> Constraint:
        start = self.token
        low = self.value()
        if not self.takes_word("and"):
            raise self.error(f"expected 'and' and the upper end of 'between', found {self.token}")
        high = self.value()
        return self.built(lambda low: made.between(low, high), low, start)

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
        return made.one_of(values)

    def like(self) -> Constraint:
        token = self.take()
        if token.kind is not Kind.STRING:
            raise self.error(f"expected a pattern like 'abc%' after 'like', found {token}", token)
        return self.built(made.like, token.text, token)

    def built(
        self,
        build: Callable[[Value], Constraint] | Callable[[str], Constraint],
        value: Value,
        token: Token,
    ) -> Constraint:
        """The constraint, or its complaint pointed at the token."""
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
                raise self.error(made.NO_NAN, token)
            case "null":
                raise self.error(made.NO_NULL, token)
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
