"""The bound of loops that look at a log again because somebody else was faster, or has to end first."""

from __future__ import annotations

import logging
import random
import time

from airflow_delta.exceptions import PublicationPendingException
from airflow_delta.publication.records import PublicationPlan

logger = logging.getLogger(__name__)

MOST_ROUNDS = 100
"""Rounds of one loop: a minute and more, as it pauses between them. Each is one that others have won."""

_AT_ONCE = 5
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0


class Rounds:
    """The rounds of one loop.

    :param table: URI of the table that it looks at.
    """

    def __init__(self, plan: PublicationPlan, table: str) -> None:
        self._plan = plan
        self._table = table
        self._count = 0

    def again(self, why: str) -> None:
        """Begin another round: the first few at once, later ones after a pause.

        :param why: what the last one has met.
        :raises PublicationPendingException: if there were too many.
        """
        self._count += 1
        level = logging.INFO if self._count > 1 else logging.DEBUG  # to look once more is part of every step
        logger.log(level, "Table %s, publication %s: looking again: %s.", self._table, self._plan.publication, why)
        if self._count >= MOST_ROUNDS:
            raise PublicationPendingException(
                f"Publication {self._plan.publication} could not go on at table {self._table}: it looked {self._count} times, "
                f"the last time because {why}. Nothing is lost: run the task again.",
                table=self._table,
                publication=self._plan.publication,
                tables=self._plan.uris,
            )
        if self._count > _AT_ONCE:
            longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 1.5 ** (self._count - _AT_ONCE))
            time.sleep(longest * random.uniform(0.5, 1))  # noqa: S311 - no secret
