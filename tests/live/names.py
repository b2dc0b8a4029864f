"""What the tests and their Dags both know. Imports nothing: the tests themselves need no Airflow."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime

LONG = os.environ.get("LIVE") == "long"
RUNS = 20 if LONG else 8
"""How many runs there are at once."""

FIRST = datetime(2013, 1, 1, tzinfo=UTC)
"""The logical date of the first of them."""

ROWS = 3
"""Rows of each stage."""

SLOTS = 6
"""Ordinary tasks at once: three for each of two cores, since they wait for the API server now and then."""

HOLDING_POOL = "held"
SLOTS_TO_HOLD = 20
"""The pool of the Dags whose tasks are held on purpose: a held one must not keep the others from going on."""

GATED_POOLS = ("gate_months", "gate_same_month", "gate_restart", "gate_unique")
"""Pools without a slot: their commits wait, at no cost, until a test gives the pool slots and lets all of them go at once."""


ONE_SLOT = ("one_slot", "one_slot_alone")
"""Pools in which one task runs at a time."""


def gate_name(run_id: str, point: str) -> str:
    """Return the name of a gate as a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", f"{run_id}--{point}")
