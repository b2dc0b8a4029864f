"""Several tables as one publication: all of them show it, or none.

Upwards: :mod:`~airflow_delta.publication.records` (ids, states, plans, results); ``states`` (what the logs say) and ``plan``;
``inverse`` (what takes a commit back); ``participant`` (one table, as a worker checks and puts it); ``steps`` (what they do, by
whoever comes); ``publish`` and ``versions`` (what tasks, hooks and the command line call).

The decision is the anchor table's own log entry, and the state on a table is the version of a ``txn`` action there, so nothing
can disagree with a log, and every worker that reads the logs agrees with every other.
"""

from __future__ import annotations

from airflow_delta.lazy import face

_HOMES = {
    "Member": "records",
    "OpenPublication": "records",
    "OpenTable": "records",
    "PublicationAbort": "records",
    "PublicationId": "records",
    "PublicationOptions": "records",
    "PublicationPlan": "records",
    "PublicationResult": "records",
    "VersionVector": "records",
    "abort_tables": "publish",
    "check_publishable": "plan",
    "check_versions": "versions",
    "get_versions": "versions",
    "has_lost": "versions",
    "open_publications": "states",
    "own_tables": "steps",
    "publication_states": "states",
    "publication_tables": "states",
    "publish_tables": "publish",
    "settle": "publish",
    "settle_named": "publish",
    "settle_open": "publish",
    "table_mark": "records",
}

__all__ = [
    "Member",
    "OpenPublication",
    "OpenTable",
    "PublicationAbort",
    "PublicationId",
    "PublicationOptions",
    "PublicationPlan",
    "PublicationResult",
    "VersionVector",
    "abort_tables",
    "check_publishable",
    "check_versions",
    "get_versions",
    "has_lost",
    "open_publications",
    "own_tables",
    "publication_states",
    "publication_tables",
    "publish_tables",
    "settle",
    "settle_named",
    "settle_open",
    "table_mark",
]

__getattr__, __dir__ = face(__name__, _HOMES)
