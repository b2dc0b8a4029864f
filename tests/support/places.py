"""Files that tests loop over: a place that has none is an error, since a test without a case passes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[2]
T = TypeVar("T")


class NothingFoundError(AssertionError):
    """What a test was to look at is not there."""


def some(found: Iterable[T], what: object) -> list[T]:
    """Return what was found.

    :param what: where it was looked for, for the error.
    :raises NothingFoundError: if there is nothing.
    """
    listed = list(found)
    if not listed:
        raise NothingFoundError(f"Nothing found: {what}. A test of nothing would pass; has the place moved?")
    return listed


def files(folder: Path, *patterns: str) -> list[Path]:
    """Return the files of each pattern below a folder, at least one of each, in order.

    :param patterns: as ``Path.glob`` takes them.
    """
    found = {
        path for pattern in patterns for path in some((p for p in folder.glob(pattern) if p.is_file()), f"{folder}/{pattern}")
    }
    return sorted(found)


def tracked(folder: Path) -> list[Path]:
    """Return the files of the project below a folder: those that git has, and new ones that it does not ignore."""
    # Whoever runs the tests need not be the owner of the checkout.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", str(folder)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return some(sorted(path for name in said.split("\0") if name and (path := ROOT / name).is_file()), f"git ls-files {folder}")
