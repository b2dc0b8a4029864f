"""How long to wait after a lost race."""

from __future__ import annotations

import random

_IMMEDIATE = 2
_FIRST_SPAN = 0.004
_PATIENCE = 0.25


def pause(losses: int, waited: float, shortest: float, longest: float) -> float:
    """Return how many seconds to wait before the next put.

    After the first losses there is no wait: the race is usually over. Then pauses are drawn from a range that grows with each
    loss, so that a crowd spreads out. Once a commit has waited long, its range shrinks, so that whoever has waited longest gets
    through.

    :param losses: puts lost so far.
    :param waited: seconds since the commit began.
    :param shortest: seconds; the lower bound of a pause.
    :param longest: seconds; the upper bound.
    """
    if losses <= _IMMEDIATE:
        return shortest
    span = _FIRST_SPAN * 2 ** min(losses - _IMMEDIATE, 6)
    if waited > _PATIENCE:
        span = _FIRST_SPAN * _PATIENCE / waited
    return min(longest, shortest + random.uniform(0, span))  # noqa: S311 - jitter, not a secret
