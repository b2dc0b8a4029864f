"""Environments of processes that shall see nothing of the one that starts them."""

from __future__ import annotations

import os
from pathlib import Path


def clean_environment(home: Path, **more: str) -> dict[str, str]:
    """Return an environment without a trace of this one's Airflow, Python and virtual environment."""
    strange = ("AIRFLOW", "PYTHON", "PYTEST", "VIRTUAL_ENV", "SPARK", "TEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    return kept | {"HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"} | more
