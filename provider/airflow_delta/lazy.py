"""Names that are looked up where they are defined when somebody uses them: faces of packages, and doors to heavy modules.

The names stand once: in the stub beside the module, where type checkers find them as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def homes_in(stub: str) -> dict[str, str]:
    """Return for each name that a stub hands on (lines ``from home import name as name``) the module that defines it."""
    lines = (line.split() for line in stub.splitlines() if line.startswith("from "))
    return {name: home for _, home, _, name, *_ in lines}


def _homes_of(module: str) -> dict[str, str]:
    spec: Any = sys.modules[module].__spec__
    return homes_in(spec.loader.get_data(f"{spec.origin}i").decode())  # also from the zip that travels to a cluster


def door(module: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return ``__getattr__`` and ``__all__`` of a door: each use asks the home, so that a patched function is the one called.

    :param module: name of the door's module, which has a stub beside it.
    """
    homes = _homes_of(module)

    def look_up(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(home), name)

    return look_up, sorted(homes)


def face(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package that hands on names of others; each is looked up once.

    :param package: its name; its stub is ``__init__.pyi``.
    """
    look_up, names = door(package)

    def look_up_once(name: str) -> Any:
        value = look_up(name)
        setattr(sys.modules[package], name, value)
        return value

    return look_up_once, lambda: names, names
