"""The points at which a process can die, as it comes by them: before and after everything that it does to the world outside."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO

import airflow_delta
from airflow_delta.log.storage.base import LogStore
from faults.shared.layers import Layer

PROVIDER = Path(airflow_delta.__file__).parent
STORES = {str(PROVIDER / "log" / "storage" / name) for name in ("base.py", "local.py", "new_files.py", "object.py", "hdfs.py")}


class Points:
    """Counts the points that a process reaches, and kills it at one of them.

    :param kill_at: number of the point; ``None``: none of them.
    :ivar trail: what was reached: the point, the file and line in the provider that led to it, and how many effects came before.
    """

    def __init__(self, kill_at: int | None = None) -> None:
        self.kill_at = kill_at
        self.trail: list[tuple[str, str, int]] = []
        self._effects = 0

    def reach(self, name: str, site: str = "") -> None:
        """Be at a point."""
        if len(self.trail) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.trail.append((name, site, self._effects))

    def effect(self, name: str, *steps: Callable[[], Any], site: str = "") -> Any:
        """Do something in steps, with a point before each of them and one after the last.

        :param site: file and line in the provider, if it does it.
        """
        result = None
        for number, step in enumerate(steps):
            self.reach(f"{name}: {'before' if number == 0 else 'half done'}", site)
            result = step()
            self._effects += 1
        self.reach(f"{name}: after", site)
        return result


def call_site() -> str:
    """Return the file and line in the provider, outside of its stores, from which the running call came."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(f"{PROVIDER}/") and file not in STORES:
            return f"{file.removeprefix(f'{PROVIDER}/')}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


class Watched(Layer):
    """Every effect on the store is a point. What is deleted together is deleted in two halves."""

    def __init__(self, below: LogStore, points: Points) -> None:
        super().__init__(below)
        self._points = points

    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._points.effect(
            f"put_if_absent {path}", lambda: self.below.put_if_absent(path, data, durable=durable), site=call_site()
        )

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._points.effect(f"put {path}", lambda: self.below.put(path, data, durable=durable), site=call_site())

    def put_file(self, path: str, file: BinaryIO) -> None:
        self._points.effect(f"put_file {path}", lambda: self.below.put_file(path, file), site=call_site())

    def delete(self, paths: Iterable[str]) -> None:
        paths = list(paths)
        halves = [half for half in (paths[: len(paths) // 2], paths[len(paths) // 2 :]) if half]
        if halves:
            steps = [lambda half=half: self.below.delete(half) for half in halves]
            self._points.effect(f"delete {', '.join(paths)}", *steps, site=call_site())

    def delete_tree(self, directory: str) -> int:
        files = sorted(status.path for status in self.below.list_recursive(directory))

        def rest() -> int:
            self.below.delete_tree(directory)
            return len(files)

        half = files[: len(files) // 2]
        steps = [*([lambda: self.below.delete(half)] if half else []), rest]
        return int(self._points.effect(f"delete_tree {directory}", *steps, site=call_site()))


def watch_directories(points: Points) -> None:
    """Make the deletion of empty directories a point, which no store does for its callers."""
    rmdir = os.rmdir

    @wraps(rmdir)
    def watched(path: Any, **options: Any) -> None:
        if site := call_site():
            points.effect(f"rmdir {path}", lambda: rmdir(path, **options), site=site)
        else:
            rmdir(path, **options)

    os.rmdir = watched


def watch_hooks(points: Points, hooks: Iterable[type]) -> None:
    """Make the begin and the end of every hook that runs after a commit a point."""
    for hook in hooks:
        setattr(hook, "run", _between(points, hook.__name__, hook.run))  # type: ignore[attr-defined]  # noqa: B010


def _between(points: Points, name: str, run: Callable[..., None]) -> Callable[..., None]:
    @wraps(run)
    def watched(*args: Any, **kwargs: Any) -> None:
        points.reach(f"hook {name}: before")
        run(*args, **kwargs)
        points.reach(f"hook {name}: after")

    return watched
