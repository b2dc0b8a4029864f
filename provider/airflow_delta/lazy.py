"""Names that are looked up where they are defined when somebody uses them: faces of packages, and doors to heavy modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_ROOT = "airflow_delta."


def door(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a door: each use asks the home, so that a patched function is the one that is called.

    :param module: name of the door's module.
    :param homes: for every name the module that defines it.
    """

    def look_up(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(home), name)

    return look_up


def face(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that hands on names of its modules; a name is looked up once.

    :param homes: for every name the module that defines it; below the package, unless it starts with ``airflow_delta.``.
    """
    look_up = door(package, {name: home if home.startswith(_ROOT) else f"{package}.{home}" for name, home in homes.items()})

    def look_up_once(name: str) -> Any:
        value = look_up(name)
        setattr(sys.modules[package], name, value)
        return value

    return look_up_once, lambda: sorted(sys.modules[package].__all__)
