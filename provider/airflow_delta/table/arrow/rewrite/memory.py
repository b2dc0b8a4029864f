"""How much memory an operation in the worker may take for what it cannot pass in batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from airflow_delta.contract.byte_sizes import size_text
from airflow_delta.exceptions import DeltaUnsupportedOperationException

if TYPE_CHECKING:
    from airflow_delta.contract.request import StageRequest


class MemoryBound:
    """The bound of one operation.

    :param given: bytes; default: a quarter of the memory that this process may have.
    """

    def __init__(self, request: StageRequest, given: int | None = None) -> None:
        self._request = request
        self._given = given
        self.most = available_memory() // 4 if given is None else given

    def check(self, size: int, what: str, *, known: bool = True) -> None:
        """Refuse what is larger than memory may take.

        :param size: its bytes.
        :param what: what it is and how large, before "at most".
        :param known: whether there is no more of it than that.
        :raises DeltaUnsupportedOperationException: if it is; nothing must have been written.
        """
        if size <= self.most:
            return
        bound = "max_memory" if self._given is not None else "a quarter of the memory that this process may have; max_memory"
        raise self._request.error(
            DeltaUnsupportedOperationException,
            f"{what} {'takes' if known else 'takes more than'} {size_text(size)} of memory, and may take {size_text(self.most)} "
            f'({bound}). Use engine="spark", work in parts, or raise max_memory. Nothing was written.',
        )


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process may have: the machine's, or less by a control group (a container's limit).

    :param root: where the kernel's file systems are.
    """
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of the control groups of this process and of those around them, of both versions of control groups."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        if not controllers:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        path = PurePosixPath(group.lstrip("/"))
        # In a container the path may be that on the machine, where it is not mounted: its own group is then the top.
        for at in (path, *path.parents):
            text = _text(top / at / name).strip()
            if text.isdecimal():  # else "max"
                yield int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
