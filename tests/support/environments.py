"""Environments of processes that shall see nothing of the one that starts them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path


def installed_environment(place: Path, requirements: Sequence[str]) -> Path:
    """Make a virtual environment of these packages, unless it is there, and return its folder of programs.

    :param place: of the environment, which stays there for later tests.
    """
    made = place / "made"
    place.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:  # several processes of pytest
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.read_text().split() != list(requirements):
            venv.create(place, clear=True, with_pip=True)
            subprocess.run([place / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements], check=True)
            made.write_text("\n".join(requirements))
    return place / "bin"


def clean_environment(home: Path, **more: str) -> dict[str, str]:
    """Return an environment without a trace of this one's Airflow, Python and virtual environment."""
    strange = ("AIRFLOW", "PYTHON", "PYTEST", "VIRTUAL_ENV", "SPARK", "TEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    return kept | {"HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"} | more
