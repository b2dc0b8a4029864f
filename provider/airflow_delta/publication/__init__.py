"""Several tables as one publication: all of them show it, or none.

Upwards: ``ids``, ``results`` and ``side_by_side`` (several tables at a time); ``records`` (options, plans, states); ``states``
(what the logs say); ``plan``, and ``inverse`` (what takes a commit back); ``participant`` (one table, as a worker checks and puts
it) and ``rounds`` (the bound of loops); ``steps`` (what they do, by whoever comes); ``publish``, ``unfinished`` and ``versions``
(what tasks, hooks and the command line call).

The decision is the anchor table's own log entry, and the state on a table is the version of a ``txn`` action there, so nothing
can disagree with a log, and every worker that reads the logs agrees with every other.
"""

from __future__ import annotations

from airflow_delta.lazy import face

__getattr__, __dir__, __all__ = face(__name__)
