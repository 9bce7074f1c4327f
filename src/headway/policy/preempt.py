"""Who is put out when a running sequence needs a block and there is none, free or reusable.

Only running requests put each other out, and a request never puts out one that ranks before it: the victim is the
last in rank, which may be the very one that asks. So the first in rank always keeps what it has and ends, and
nothing can be preempted in circles.
"""

from __future__ import annotations

from headway.request import Request


def rank(request: Request) -> tuple[int, int]:
    """Place among the running: the last one is the victim, i.e. the largest priority number, then the newest."""
    return (request.priority, request.arrival)


def price(request: Request) -> int:
    """Positions whose state is given up; how many must be recomputed shows only when it resumes."""
    return sum(sequence.computed for sequence in request.open_sequences)
