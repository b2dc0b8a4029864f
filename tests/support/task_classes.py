"""The tasks of this provider, and what their docstrings say of parameters."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

from airflow.sdk import BaseOperator

import airflow_delta

FOLDERS = ("operators", "sensors", "decorators")


def task_classes() -> list[type[BaseOperator]]:
    found: dict[type[BaseOperator], None] = {}
    for module in pkgutil.walk_packages(airflow_delta.__path__, "airflow_delta."):
        if module.name.split(".")[1] in FOLDERS:
            for value in vars(importlib.import_module(module.name)).values():
                if inspect.isclass(value) and issubclass(value, BaseOperator) and value.__module__ == module.name:
                    found[value] = None
    return list(found)


def documented(kind: type[BaseOperator]) -> dict[str, bool]:
    """Parameters that the docstrings of a task and its bases describe, and whether these call them templated."""
    found: dict[str, bool] = {}
    for base in kind.__mro__:
        if base.__module__.startswith("airflow_delta"):
            text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
            for name, said in re.findall(r":param (\w+):(.*?)(?=\n:|\n\n|\Z)", text, re.DOTALL):
                found.setdefault(name, "(templated" in said)
    return found
