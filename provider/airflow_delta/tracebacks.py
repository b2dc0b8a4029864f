"""The useful line of a traceback that is only text, as Airflow keeps those of Dag files and tasks."""

from __future__ import annotations


def message_of(error: str) -> str:
    """Return the message of the last error of a traceback, in one line: what follows the frames, which are indented."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    after = max((number for number, line in enumerate(lines) if line.startswith(" ")), default=-1) + 1
    return " ".join(line.strip() for line in lines[after:] or lines[-1:]) if lines else "cannot be read"
