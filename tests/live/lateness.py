"""What a missed deadline calls, in the triggerer."""

from __future__ import annotations

from pathlib import Path
from typing import Any


async def missed(path: str, context: Any = None, **_: Any) -> None:
    """Note the run that is late."""
    with Path(path).open("a") as called:
        called.write(f"{context['dag_run']['dag_run_id']}\n")
