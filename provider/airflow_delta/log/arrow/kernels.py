"""Arrow's compute functions, each made when it is first used.

``pyarrow.compute`` writes a function and its documentation for each of Arrow's 300 kernels when it is imported: more CPU than all
that a listing of few files does itself. So does the first use of what arrays do by way of it: ``filter``, ``take``, ``cast``,
``is_valid`` and others, which what lists files calls here instead. What this does not find is taken from ``pyarrow.compute``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = _WRITTEN.get(name) or _function(name) or getattr(import_module("pyarrow.compute"), name)
    setattr(sys.modules[__name__], name, function)
    return function


def _cast(values: Any, data_type: Any) -> Any:
    """Return values as another type; what does not fit it is an error."""
    return _compute().call_function("cast", [values], _compute().CastOptions.safe(data_type))


def _fill_null(values: Any, value: Any) -> Any:
    """Return values with a scalar where they are null."""
    if values.type != value.type:
        return import_module("pyarrow.compute").fill_null(values, value)
    return _compute().call_function("coalesce", [values, value])


_WRITTEN = {"cast": _cast, "fill_null": _fill_null}


@cache
def _compute() -> Any:
    return import_module("pyarrow._compute")


def _function(name: str) -> Callable[..., Any] | None:
    """Return what ``pyarrow.compute`` would make of a kernel, without its documentation; ``None`` if this cannot tell."""
    try:
        kernel = _compute().get_function(name.rstrip("_"))
        options_class = getattr(_compute(), kernel._doc.options_class) if kernel._doc.options_class else None
        arity = kernel.arity
    except (AttributeError, ImportError, KeyError):
        return None

    def call(*arguments: Any, **options: Any) -> Any:
        count = len(arguments) if arity is Ellipsis else arity
        given = arguments[count:]
        made = options_class(*given, **options) if options_class is not None and (given or options) else None
        return kernel.call(list(arguments[:count]), made)

    return call
