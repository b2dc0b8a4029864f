"""How far the clocks of scheduler, workers and stores may differ."""

from __future__ import annotations

CLOCKS_DIFFER_BY = 24 * 3_600_000
"""Milliseconds where looking further is rare, and a wrong answer would cost a commit."""

SYNCHRONISED_WITHIN = 1_800_000
"""Milliseconds for what every start reads: object stores refuse requests signed a quarter of an hour off, Airflow tokens that are
ten minutes old."""

WORKERS_DIFFER_BY = 600_000
"""Milliseconds between two workers that Airflow has both given tokens."""
