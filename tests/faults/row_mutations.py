"""The rules of the engine broken by hand, one at a time: what the histories must notice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

MUTATIONS: dict[str, Callable[[], AbstractContextManager[object]]] = {}
