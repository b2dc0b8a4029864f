"""Tags of ``commitInfo``: in which words a commit of this provider says who has written it, and how.

Their values are strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TAG_PREFIX = "airflow."

DAG_ID_TAG = "airflow.dagId"
RUN_ID_TAG = "airflow.runId"
TASK_ID_TAG = "airflow.taskId"
MAP_INDEX_TAG = "airflow.mapIndex"
"""``-1``: of a task that is not mapped."""

INSTANCE_TAGS = (DAG_ID_TAG, RUN_ID_TAG, TASK_ID_TAG, MAP_INDEX_TAG)
"""Tags that name the task instance that has committed."""

TRY_NUMBER_TAG = "airflow.tryNumber"
MAX_TRIES_TAG = "airflow.maxTries"
"""The try that Airflow would have given up after: it grows when the instance is cleared."""

SCHEDULED_FOR_TAG = "airflow.scheduledFor"
"""What Airflow has created the run of a commit for; runs that somebody has triggered have none."""

APP_ID_TAG = "airflow.appId"
"""The transaction's application id. Every commit of this provider has the tag."""

KEEPS_ROWS_TAG = "airflow.keepsRows"
"""Files that the commit added hold rows that were in the table before: they cannot be taken back by removing the files."""

OPERATIONS_TAG = "airflow.operations"
"""JSON: the operations of a commit that has no single name in Delta."""

DETECTION_TAG = "airflow.conflictDetection"
"""The level of conflict detection (:data:`~airflow_delta.transaction.conflict_detection.ConflictDetection`)."""

RESOLVED_TAG = "airflow.conflictsResolved"
"""JSON: how (``statistics``, ``keys``, ``rows``, ...) to the versions for which it showed that no row conflicts."""

CHECKS_TAG = "airflow.checks"
"""JSON: :class:`~airflow_delta.contract.check_records.CheckRecords`."""

PARTITION_EVENTS_TAG = "airflow.partitionEvents"
"""The task that commits emits the events of its partitions."""

PUBLICATION_TAG = "airflow.publication"
"""The id of the publication that the commit is part of."""

ANCHOR_TAG = "airflow.publicationAnchor"
TABLES_TAG = "airflow.publicationTables"
STATE_TAG = "airflow.publicationState"
REASON_TAG = "airflow.publicationReason"
"""JSON, why a publication is refused or undone: message; of a refusal also error, table, version and operation of the winner."""


def part_of(tags: Mapping[str, Any]) -> str | None:
    """Return the id of what a commit is a part of, with commits of other tables; ``None``: it stands alone."""
    return tags.get(PUBLICATION_TAG)


def takes_back(tags: Mapping[str, Any]) -> bool:
    """Tell whether a commit takes an earlier one back that is a part of the same."""
    return tags.get(STATE_TAG) == "undone"
