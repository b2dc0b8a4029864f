"""The tasks of this provider."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

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
