"""``docs/how-to/cluster.md``, as a newcomer follows it: every block of its walk-through, in one shell."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from stores.airflow_home import ROOT, TIMEOUT
from stores.process import free_port
from support import readers
from support.documents import section, shell

DOCS = ROOT / "docs"


def test_the_walk_through_as_written(installed: None, tmp_path: Path) -> None:
    """Word for word, but for the port. The environment of the quick start is this one, which is installed already."""
    blocks = [
        *section(DOCS / "quick-start.md", "Set up Airflow"),
        *section(DOCS / "how-to" / "cluster.md", "A cluster on this machine"),
    ]
    assert len(blocks) >= 7
    script = re.sub(r"\b7077\b", str(free_port()), shell(blocks))
    strange = ("AIRFLOW", "PYTHON", "VIRTUAL_ENV", "SPARK", "PYSPARK")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    process = subprocess.Popen(
        ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
        env=kept | {"PATH": path, "HOME": str(tmp_path), "TERM": "dumb"}, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(script, timeout=TIMEOUT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output[-6000:]
    rows = readers.rows(tmp_path / "lake" / "cluster_orders")
    assert len(rows) == 1098  # of each batch, the order that costs nothing is gone
    assert len(list((tmp_path / "lake" / "cluster_orders" / "_delta_log").glob("0*.json"))) == 3
    assert {path.name for path in tmp_path.glob("work-*") if any(path.iterdir())} == {"work-1", "work-2"}
    assert "DELETE" in output
