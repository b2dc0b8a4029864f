"""Text for the terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence


class Clock:
    """Time since the demo began, and lines that carry it."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> int:
        return int(time.monotonic() - self._started)

    def say(self, text: str) -> None:
        print(f"  {self.seconds // 60:2}:{self.seconds % 60:02}  {text}", flush=True)


def section(title: str) -> None:
    print(f"\n{title}\n", flush=True)


def table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        print("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))
