"""Regular expressions for the numbers of an interval, exact however many digits the bounds have.

The grammar library computes with 53 bits. What needs more is written out here, digit by digit, as JSON
writes numbers: without leading zeros. An interval without numbers is the empty list of alternatives.
"""

from __future__ import annotations

_FRACTION = r"(\.[0-9]+)?"
_ZEROS = r"(\.0+)?"
_MORE_THAN_NOTHING = r"\.[0-9]*[1-9][0-9]*"


def integers(low: int | None, high: int | None) -> list[str]:
    """The integers from `low` to `high`, both included; None is no bound."""
    negative = [f"-{one}" for one in _naturals(*_mirrored(low, high, 1))]
    return negative + _naturals(*_positive(low, high))


def numbers(low: int | None, high: int | None, *, above: bool = False, below: bool = False) -> list[str]:
    """The decimal numbers from `low` to `high`, without exponents. With `above`, `low` itself is not one of them, and
    with `below`, `high` is not."""
    small, large = _mirrored(low, high, 0)
    negative = _decimals(small, large, high is None or high >= 0 or below, above)
    first, last = _positive(low, high)
    return [f"-{one}" for one in negative] + _decimals(first, last, above and low is not None and low >= 0, below)


def _mirrored(low: int | None, high: int | None, least: int) -> tuple[int, int | None]:
    """The part below zero, as absolute values; the first is more than the last if there is none."""
    if low is not None and low >= 0:
        return 1, 0
    return max(least, -high if high is not None else least), None if low is None else -low


def _positive(low: int | None, high: int | None) -> tuple[int, int | None]:
    """The part from zero on."""
    return max(low or 0, 0), high


def _decimals(low: int, high: int | None, above: bool, below: bool) -> list[str]:
    """Decimal numbers from `low` ≥ 0 to `high`."""
    if high is not None and (low > high or (low == high and (above or below))):
        return []
    if low == high:
        return [f"{low}{_ZEROS}"]
    inner = _naturals(low + 1 if above else low, None if high is None else high - 1)
    parts = [f"({'|'.join(inner)}){_FRACTION}"] if inner else []
    if above:
        parts.append(f"{low}{_MORE_THAN_NOTHING}")
    if high is not None and not below:
        parts.append(f"{high}{_ZEROS}")
    return parts


def _naturals(low: int, high: int | None) -> list[str]:
    """Integers from `low` ≥ 0 to `high`, by their number of digits."""
    if high is not None and low > high:
        return []
    first = len(str(low))
    last = first if high is None else len(str(high))
    if first == last and high is not None:
        return [_alike(str(low), str(high))]
    parts = [_alike(str(low), "9" * first)]
    if high is None:
        return [*parts, f"[1-9][0-9]{{{first},}}"]
    if last - first > 1:
        parts.append(f"[1-9][0-9]{{{first},{last - 2}}}")
    return [*parts, _alike("1" + "0" * (last - 1), str(high))]


def _alike(low: str, high: str) -> str:
    """What lies between two texts of as many digits."""
    if low == high:
        return low
    if not low.strip("0") and not high.strip("9"):
        return f"[0-9]{{{len(low)}}}"
    first, last = int(low[0]), int(high[0])
    if first == last:
        return f"{first}{_alike(low[1:], high[1:])}"
    parts, rest = [], len(low) - 1
    if low[1:].strip("0"):
        parts.append(f"{first}{_alike(low[1:], '9' * rest)}")
        first += 1
    if high[1:].strip("9"):
        parts.append(f"{last}{_alike('0' * rest, high[1:])}")
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    return f"({'|'.join(parts)})"
