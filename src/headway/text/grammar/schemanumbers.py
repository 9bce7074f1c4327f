"""Numbers in JSON schemas: bounds and counts, exact whatever they are written as (1, 1.0, 1e20)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor, lcm, prod
from typing import Any

from headway.core.errors import GrammarError
from headway.text.grammar.schemafacts import types_of

#: Up to here the grammar library is exact.
EXACT = 1 << 53
#: No answer has more characters, items or properties; a larger upper bound has no effect.
_MOST_COUNT = 1 << 31
#: Digits of a bound, a constant or a divisor.
_MOST_DIGITS = 100
#: The grammar library keeps the digits of `multipleOf` in 32 bits.
_MOST_DIVISOR = 1 << 32
#: So many multiples between two bounds are listed one by one.
_MOST_MULTIPLES = 64
#: Keywords that bound a number, the lower ones first.
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
Json = dict[str, Any]


def exact(at: str, key: str, value: Any) -> Decimal:
    """A number as it was written. Raises GrammarError for anything else, and for too many digits."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise GrammarError(f"{at}: {key} must be a number")
    if isinstance(value, int) and value.bit_length() > 4 * _MOST_DIGITS:
        raise GrammarError(f"{at}: {key} has more than {_MOST_DIGITS} digits, which is the limit")
    number = Decimal(repr(value) if isinstance(value, float) else value)
    if not number.is_finite():
        raise GrammarError(f"{at}: {key} is {value}, which is not a JSON number")
    if isinstance(value, int) and len(number.as_tuple().digits) > _MOST_DIGITS:
        raise GrammarError(f"{at}: {key} has more than {_MOST_DIGITS} digits, which is the limit")
    return number


def whole(number: Decimal) -> int | None:
    """The integer that a number is, if it is one that has not too many digits."""
    return int(number) if number.adjusted() <= _MOST_DIGITS and number == number.to_integral_value() else None


def count(at: str, key: str, value: Any) -> Json:
    """A number of characters, items or properties."""
    number = exact(at, key, value)
    if number < 0 or number != number.to_integral_value():
        raise GrammarError(f"{at}: {key} is {value}; it must be a whole number, 0 or more")
    if number > _MOST_COUNT:
        if key.startswith("min"):
            raise GrammarError(f"{at}: {key} is {value}; no answer is that long, the limit is {_MOST_COUNT}")
        return {}
    return {} if key.startswith("min") and number == 0 else {key: int(number)}


def plain(at: str, key: str, number: Decimal) -> int | float:
    """As the grammar library reads it, or as an integer of any size. Raises GrammarError for a fraction of more
    digits than a double has."""
    if (integer := whole(number)) is not None:
        return integer
    if Decimal(repr(float(number))) != number:
        raise GrammarError(f"{at}: {key} is {number}, which has more digits than a double; only integers may")
    return float(number)


def numeric(at: str, schema: Json, read: Json) -> Json:
    """`read` with its bounds and its divisor in their plainest form. What is listed is measured here, and so are
    integers: the grammar library computes with 53 bits."""
    given = {key: exact(at, key, schema[key]) for key in schema if key in BOUNDS or key == "multipleOf"}
    rest = {key: value for key, value in read.items() if key not in given}
    for key, value in given.items():
        plain(at, key, value)
    interval = Interval.of(given)
    divisor = given.get("multipleOf")
    if divisor is not None and divisor <= 0:
        raise GrammarError(f"{at}: multipleOf is {schema['multipleOf']}; it must be more than 0")
    if "enum" in rest or "const" in rest:
        return _measured(at, rest, interval, divisor)
    if "number" not in types_of(schema):
        interval, divisor = interval.of_integers(), None if divisor is None else Decimal(Fraction(divisor).numerator)
        divisor = None if divisor == 1 else divisor
    if divisor is None:
        _not_empty(at, schema, interval)
        return rest | _keywords(at, interval)
    multiples = interval.multiples(divisor)
    if multiples == []:
        raise GrammarError(f"{at}: no multiple of {divisor} (multipleOf) is left {_between(schema)}")
    if multiples is not None and types_of(schema) <= {"number", "integer"}:
        return {"enum": [plain(at, "multipleOf", value) for value in multiples]} | {
            k: v for k, v in rest.items() if k != "type"
        }
    if not _divides_exactly(divisor) or any(map(beyond, _keywords(at, interval).values())):
        raise GrammarError(
            f"{at}: multipleOf {divisor} {_between(schema)} is not supported: it must have at most 32 bits without "
            "its decimal point, and bounds beside it must be within 2^53"
        )
    return rest | _keywords(at, interval) | {"multipleOf": plain(at, "multipleOf", divisor)}


def check_divisors(divisors: Mapping[float, str]) -> None:
    """Raises GrammarError for values of `multipleOf` (with their places) that may apply to one number together, where
    the grammar library's 32 bits do not hold what is a multiple of all."""
    fractions = [Fraction(Decimal(repr(divisor))) for divisor in divisors]
    scale = lcm(*(fraction.denominator for fraction in fractions))
    if len(divisors) > 1 and prod(fraction * scale for fraction in fractions) >= _MOST_DIVISOR:
        named = ", ".join(f"{divisor} at {at}" for divisor, at in list(divisors.items())[:5])
        raise GrammarError(f"#: multipleOf is {named}: where schemas are combined, their product must be below 2^32")


def beyond(value: Any) -> bool:
    """Whether it is a number that needs more than the grammar library's 53 bits."""
    return isinstance(value, int) and abs(value) > EXACT


@dataclass(frozen=True)
class Interval:
    """The numbers between two bounds. None is no bound; an open bound is not itself part of it."""

    low: Decimal | None
    high: Decimal | None
    above: bool = False
    below: bool = False

    @classmethod
    def of(cls, given: Json) -> Interval:
        """The tightest of the bounds that a schema names."""
        lows = [(given[key], key != "minimum") for key in ("minimum", "exclusiveMinimum") if key in given]
        highs = [(given[key], key == "maximum") for key in ("maximum", "exclusiveMaximum") if key in given]
        low, above = max(lows, default=(None, False))
        high, closed = min(highs, default=(None, True))
        return cls(low, high, above, not closed)

    def __contains__(self, value: Decimal) -> bool:
        return (self.low is None or self.low < value or (self.low == value and not self.above)) and (
            self.high is None or value < self.high or (self.high == value and not self.below)
        )

    @property
    def empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and (self.above or self.below))

    def of_integers(self) -> Interval:
        """The integers of it."""
        return self._steps(Fraction(1))

    def multiples(self, divisor: Decimal) -> list[Decimal] | None:
        """The multiples of a number within; None, if there are many."""
        if self.low is None or self.high is None:
            return None
        step = Fraction(divisor)
        first, last = self._count(step)
        if first is None or last is None or last - first >= _MOST_MULTIPLES:
            return None
        return [divisor * count for count in range(first, last + 1)]

    def _steps(self, step: Fraction) -> Interval:
        first, last = self._count(step)
        return Interval(None if first is None else Decimal(first), None if last is None else Decimal(last))

    def _count(self, step: Fraction) -> tuple[int | None, int | None]:
        """The first and the last multiple of `step` within, in steps."""
        low = None if self.low is None else Fraction(self.low) / step
        high = None if self.high is None else Fraction(self.high) / step
        first = None if low is None else floor(low) + 1 if self.above else ceil(low)
        last = None if high is None else ceil(high) - 1 if self.below else floor(high)
        return first, last


def _keywords(at: str, interval: Interval) -> Json:
    """The bounds of an interval."""
    low, high = (
        "exclusiveMinimum" if interval.above else "minimum",
        "exclusiveMaximum" if interval.below else "maximum",
    )
    bounds = ((low, interval.low), (high, interval.high))
    return {key: plain(at, key, bound) for key, bound in bounds if bound is not None}


def _measured(at: str, rest: Json, interval: Interval, divisor: Decimal | None) -> Json:
    """Listed values, as far as they fit the bounds beside them."""
    listed = rest["enum"] if "enum" in rest else [rest["const"]]
    left = [value for value in listed if _fits(at, value, interval, divisor)]
    if not left:
        raise GrammarError(
            f"{at}: no value of {'enum' if 'enum' in rest else 'const'} satisfies the keywords beside it"
        )
    return rest | ({"enum": left} if "enum" in rest else {})


def _fits(at: str, value: Any, interval: Interval, divisor: Decimal | None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return True
    number = exact(at, "enum", value)
    return number in interval and (divisor is None or Fraction(number) % Fraction(divisor) == 0)


def _not_empty(at: str, schema: Json, interval: Interval) -> None:
    if interval.empty:
        low = next(key for key in ("exclusiveMinimum", "minimum") if key in schema)
        high = next(key for key in ("exclusiveMaximum", "maximum") if key in schema)
        if exact(at, low, schema[low]) > exact(at, high, schema[high]):
            raise GrammarError(f"{at}: {low} ({schema[low]}) is greater than {high} ({schema[high]})")
        raise GrammarError(f"{at}: no number is left {_between(schema)}")


def _between(schema: Json) -> str:
    bounds = [f"{key} {schema[key]}" for key in BOUNDS if key in schema]
    return f"with {' and '.join(bounds)}" if bounds else "without bounds"


def _divides_exactly(divisor: Decimal) -> bool:
    """Whether the grammar library reads a divisor as it is: it multiplies by ten until nothing is left behind the
    point."""
    value = float(divisor)
    while value != int(value):
        value *= 10
    return value < _MOST_DIVISOR
