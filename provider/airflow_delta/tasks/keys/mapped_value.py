"""The mapped value in the default transaction key of a mapped task or task group.

A map index is a position, and positions move: if ``[1, 2, 3]`` becomes ``[9, 1, 2, 3]``, index 0 means other work. A key made of
the index would skip new work and publish old work again. So the key names the mapped value.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from uuid import UUID

import attrs
from airflow.sdk import ObjectStoragePath, XComArg

from airflow_delta.airflow_internals.tasks import all_of
from airflow_delta.dag_rules.key_precision import is_of_the_run
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern

if TYPE_CHECKING:
    from airflow.sdk import Context

_PLAIN = lazy_pattern(r"[\w/][\w./:=-]{0,99}", re.ASCII)


def instance_name(context: Context) -> str:
    """Return the name of the running mapped instance: the value it is mapped to if that is simple, or its digest.

    Instances mapped to equal values are numbered: they do the same work, whichever is which.

    :raises DeltaIllegalArgumentException: if the values have no stable text form.
    """
    ti: Any = context["ti"]
    expand_input = _expand_input(context)
    if expand_input is None:
        raise DeltaIllegalArgumentException(
            f"The value that instance {ti.map_index} of {ti.task_id!r} is mapped to is unknown, and its index does not identify "
            "it. Pass transaction_key=<what the instance works on>."
        )
    values = _values(expand_input, context)
    if ti.map_index >= len(values):
        raise DeltaIllegalArgumentException(
            f"{ti.task_id!r} is now mapped to {len(values)} values, but this is instance {ti.map_index}. Clear the task that "
            "returns the values, and everything after it."
        )
    names = [value_name(value, ti.task_id) for value in values[: ti.map_index + 1]]
    before = names[:-1].count(names[-1])
    return names[-1] if not before else f"{names[-1]}#{before + 1}"


def value_name(value: Mapping[str, Any], task_id: str) -> str:
    """Return the name of a mapped value.

    :param value: mapped arguments by name.
    :raises DeltaIllegalArgumentException: if it has no stable text form.
    """
    argument, given = next(iter(value.items())) if len(value) == 1 else ("values", value)
    if isinstance(given, int) and not isinstance(given, bool):
        return f"{argument}={given}"
    if isinstance(given, str) and _PLAIN.fullmatch(given) and not _is_json(given):  # "7" is not 7
        return f"{argument}={given}"
    try:
        text = json.dumps(given, sort_keys=True, separators=(",", ":"), default=_as_json)
    except (TypeError, ValueError) as error:
        raise DeltaIllegalArgumentException(
            f"The default transaction key of {task_id!r} is made of its mapped values, but they have no stable text form "
            f"({error}), and a map index changes its meaning with the values. Pass transaction_key=<what the instance works on>."
        ) from error
    return f"{argument}={hashlib.sha256(text.encode()).hexdigest()[:32]}"


def check_group(group_id: str, group: Any, start_kwargs: Mapping[str, Any]) -> None:
    """Refuse a transaction in a mapped task group if instances would share a key, as far as the Dag file shows.

    :param group: the mapped group.
    :raises DeltaIllegalArgumentException: if all instances have the same key, or it cannot be made from the mapped values.
    """
    given = [start_kwargs.get(name) for name in ("transaction_key", "app_id") if start_kwargs.get(name) is not None]
    if given:
        if all(is_of_the_run(value) for value in (*given, start_kwargs["table"])):
            raise _one_key(f"All instances of the mapped group around {group_id!r}", given[0])
        return
    for value in _literals(group._expand_input.value):
        value_name({"value": value}, group_id)


def check_instance(context: Context, key: str) -> None:
    """Refuse an explicit key that the Dag file gives to all instances of a mapped task or group.

    :param key: the rendered key.
    :raises DeltaIllegalArgumentException: if all instances have the same key and table.
    """
    ti = context["ti"]
    if ti.map_index is None or ti.map_index < 0:
        return
    definition: Any = getattr(context.get("dag"), "task_dict", {}).get(ti.task_id)  # its arguments are not rendered
    arguments = getattr(definition, "partial_kwargs", None) or vars(definition or object)
    given = [arguments[name] for name in ("transaction_key", "app_id") if arguments.get(name) is not None]
    if given and all(is_of_the_run(value) for value in (*given, arguments.get("table"))):
        raise _one_key(f"All instances of the mapped {ti.task_id!r}", key)


def _one_key(what: str, key: Any) -> DeltaIllegalArgumentException:
    return DeltaIllegalArgumentException(
        f"{what} would have the same transaction key {key!r}: once one has committed, the others would skip their work. Name in "
        "transaction_key what the instance works on, or leave it out: the default names the mapped value."
    )


def _mapped_definition(context: Context) -> Any:
    tasks: Any = getattr(context.get("dag"), "task_dict", {})
    definition = tasks.get(context["ti"].task_id)
    return definition if getattr(definition, "is_mapped", False) else None


def _expand_input(context: Context) -> Any:
    definition = _mapped_definition(context)
    if definition is not None:
        return definition._get_specified_expand_input()
    task: Any = context.get("task")
    group = task.get_closest_mapped_task_group() if task is not None else None
    return None if group is None else group._expand_input


def _values(expand_input: Any, context: Context) -> list[Mapping[str, Any]]:
    """Return the mapped arguments of all instances, by map index."""
    given = expand_input.value
    if isinstance(given, Mapping):  # expand(): all combinations, the last argument varies fastest
        lists = [_items(value, context) for value in given.values()]
        return [dict(zip(given, combination, strict=True)) for combination in itertools.product(*lists)]
    return [_resolved(item, context) for item in _items(given, context)]  # expand_kwargs()


def _items(value: Any, context: Context) -> list[Any]:
    value = _resolved(value, context)
    if isinstance(value, Mapping):
        return list(value.items())
    return all_of(value) if isinstance(value, Iterable) else [value]


def _resolved(value: Any, context: Context) -> Any:
    if isinstance(value, XComArg):
        return value.resolve(context)
    if isinstance(value, dict):
        return {key: _resolved(item, context) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_resolved(item, context) for item in value]
    return value


def _literals(value: Any) -> Iterable[Any]:
    """Yield the mapped values that are known when the Dag file is parsed."""
    lists = value.values() if isinstance(value, Mapping) else [value]
    for given in lists:
        if isinstance(given, Mapping):
            yield from (item for item in given.items() if not any(XComArg.iter_xcom_references(item)))
        elif isinstance(given, Sequence) and not isinstance(given, str):
            yield from (item for item in given if not any(XComArg.iter_xcom_references(item)))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal | UUID | PurePath):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Enum):
        return value.value
    if attrs.has(type(value)):
        return attrs.asdict(value, recurse=False)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return list(value)
    if isinstance(value, ObjectStoragePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
