"""The notes of a process of a history."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Notes:
    """What one process notes, a line at a time: what is written survives its death."""

    path: Path
    _file: int = -1

    def __enter__(self) -> Notes:
        self._file = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def note(self, kind: str, **values: Any) -> None:
        line = json.dumps({"note": kind, "at": time.monotonic_ns(), **values}) + "\n"
        os.write(self._file, line.encode())
