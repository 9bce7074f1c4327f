"""What becomes of a request when luck is bad: the table that the tests of faults go by."""

from __future__ import annotations

import pytest

#: Rows are stages of a request's life, columns what happens then. A step that raises is the end
#: of the requests in it, and of nobody else; SIGTERM lets everyone end who was taken on.
TABLE = """
stage                    | client leaves | DELETE    | step raises | kill -9 | SIGTERM
still tokenising         | cancelled     | finished  | finished    | refused | refused
awaiting its grammar     | cancelled     | cancelled | finished    | failed  | finished
waiting for space        | cancelled     | cancelled | finished    | failed  | finished
waiting for a seat       | cancelled     | cancelled | finished    | failed  | finished
between two chunks       | cancelled     | cancelled | failed      | failed  | finished
last chunk in flight     | cancelled     | cancelled | failed      | failed  | finished
decoding                 | cancelled     | cancelled | failed      | failed  | finished
decoding with drafts     | cancelled     | cancelled | failed      | failed  | finished
preempted                | cancelled     | cancelled | finished    | failed  | finished
siblings before the fork | cancelled     | cancelled | failed      | failed  | finished
siblings                 | cancelled     | cancelled | failed      | failed  | finished
finished, not delivered  | finished      | finished  | finished    | finished | finished
one of a list            | cancelled     | cancelled | failed      | failed  | finished
"""
_HEAD, *_ROWS = [[cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines()]
OUTCOMES = {row[0]: dict(zip(_HEAD[1:], row[1:], strict=True)) for row in _ROWS}


def column(fault: str) -> dict[str, str]:
    """By stage, what comes of this fault."""
    return {stage: outcomes[fault] for stage, outcomes in OUTCOMES.items()}


def cells(stages: list[str], faults: list[str]) -> pytest.MarkDecorator:
    """A test for each cell of these rows and columns."""
    rows = [(stage, fault, OUTCOMES[stage][fault]) for fault in faults for stage in stages]
    return pytest.mark.parametrize(("stage", "fault", "outcome"), rows, ids=[f"{s} - {f}" for s, f, _ in rows])
