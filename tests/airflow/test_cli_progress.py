"""How a command shows long work: a bar on a terminal, lines on stderr else, and nothing on stdout."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_delta.cli.progress import progress_shown
from airflow_delta.log.storage import progress
from airflow_delta.log.storage.progress import tracked

PROGRAM = """
import time
from airflow_delta.cli.progress import progress_shown
from airflow_delta.log.storage.progress import tracked
with progress_shown():
    for _ in tracked(range(1, 9), "Listing [red]s3://lake/t", 8):
        time.sleep(0.2)
"""


def test_lines_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    with progress_shown():
        assert list(tracked([1, 2], "Listing s3://lake/\x1b[2J", 2)) == [1, 2]
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Listing s3://lake/\\x1b[2J: 1 of 2 files (50 %), ")
    assert len(shown.err.splitlines()) == 2
    with progress_shown():
        monkeypatch.setattr(progress, "INTERVAL", 10.0)
        list(tracked([1, 2], "Listing", 2))
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals")
def test_a_bar_on_a_terminal():
    reading, writing = pty.openpty()
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2] / "provider"),
        "TERM": "xterm",
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=writing, env=environment)
    os.close(writing)
    shown = b""
    try:
        while block := os.read(reading, 4096):
            shown += block
    except OSError:  # Linux's way to say that the other end is closed
        pass
    os.close(reading)
    out, _ = program.communicate(timeout=60)
    assert (program.returncode, out) == (0, b"")
    assert b"Listing [red]s3://lake/t" in shown
    assert re.search(rb"[1-8]/8 files", shown)
