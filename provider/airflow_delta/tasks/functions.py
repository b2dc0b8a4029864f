"""The function of a task: called with its own arguments and with what the task fills in, and told what it must return."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from airflow_delta.exceptions import DeltaIllegalArgumentException

INJECTED = ("spark", "table", "transaction")
"""Parameters of the callable that the task fills in."""

_AUTHORS = "_airflow_delta_function"


def without_injected(function: Callable[..., Any], *more: str) -> Callable[..., Any]:
    """Return the function with a signature without the injected parameters, so that Airflow binds only the author's own.

    :param more: names of others that the task fills in.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def visible(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    own = [parameter for parameter in signature.parameters.values() if parameter.name not in (*INJECTED, *more)]
    visible.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    # Not __wrapped__, which leads past the author's own decorators. A function returned from here has it already.
    visible.__dict__.setdefault(_AUTHORS, function)
    return visible


def injected_by(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parameters of a function that parameters of its task fill in."""
    return ("new_files",) if parameters.get("new_files") is not None else ()


def authors_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that :func:`without_injected` was given."""
    own: Callable[..., Any] = getattr(function, _AUTHORS, function)
    return own


def call_injected(
    function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any], injected: Mapping[str, Any]
) -> Any:
    """Call what :func:`without_injected` returned, with the injected values where the function names them."""
    bound = inspect.signature(function).bind(*args, **kwargs).arguments
    original = authors_own(function)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in inspect.signature(original).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional.extend(bound.get(name, ()))
        elif parameter.kind is parameter.VAR_KEYWORD:
            named.update({key: value for key, value in bound.get(name, {}).items() if key not in INJECTED})
        elif name in injected or name in bound:
            value = injected[name] if name in injected else bound[name]
            if parameter.kind is parameter.KEYWORD_ONLY:
                named[name] = value
            else:
                positional.append(value)
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            positional.append(parameter.default)
    return original(*positional, **named)


def call_function(stage: Any, injected: Mapping[str, Any]) -> Any:
    """Call the function of a stage with its own arguments, bound as Airflow's operator binds them, and the injected values.

    An async function is awaited.

    :param stage: a :class:`~airflow_delta.tasks.stage.operator.StageOperator` that is a ``PythonOperator``.
    :raises DeltaIllegalArgumentException: if the run lacks a value that the function needs.
    """
    context = {**stage.opened.context, **stage.op_kwargs, "templates_dict": stage.templates_dict}
    given = stage.determine_kwargs(context)
    try:
        inspect.signature(stage.python_callable).bind(*stage.op_args, **given)
    except TypeError as error:
        raise DeltaIllegalArgumentException(
            f"The function of the task {stage.task_id!r} cannot be called: {error}. A run without a logical date (a manual "
            "one, or one that assets start) has no ds, ts, data_interval_start and the like: give such parameters a default "
            "(ds=None), or use dag_run.run_after."
        ) from None
    result = call_injected(stage.python_callable, stage.op_args, given, injected)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def check_no_session(function: Callable[..., Any], *, task_id: str) -> None:
    """Refuse a function that names the Spark session, for a task that has none.

    :raises DeltaIllegalArgumentException: if it does.
    """
    if "spark" in inspect.signature(authors_own(function)).parameters:
        raise DeltaIllegalArgumentException(
            f'The task {task_id!r} has engine="arrow", and its function a parameter spark: there is no Spark session. '
            'Drop the parameter, or use engine="spark".'
        )


_FRAMES = ("pandas.", "polars.", "pyarrow.")


def not_a_dataframe(task_id: str, result: Any, purpose: str) -> DeltaIllegalArgumentException:
    """Return the error, with what to return instead.

    :param purpose: what the DataFrame is for: ``to write``.
    """
    kind = type(result)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    name = "None" if result is None else f"a {module}{kind.__qualname__}"
    if module.startswith(_FRAMES):
        convert = "spark.createDataFrame(frame.to_pandas())" if module.startswith("polars.") else "spark.createDataFrame(frame)"
        way_out = f"Return {convert}; the function gets the session if it has a parameter spark."
        if purpose in ("to write", "to merge"):
            way_out = f'Set engine="arrow" {purpose} it without Spark, or return {convert}.'
    elif result is None:
        way_out = "Return the DataFrame instead of writing it; to stop without writing, raise AirflowSkipException."
    else:
        way_out = "To stop without writing, raise AirflowSkipException."
    return DeltaIllegalArgumentException(
        f"The function of the task {task_id!r} returned {name}, expected a Spark DataFrame (pyspark.sql.DataFrame) of the rows "
        f"{purpose}. {way_out}"
    )
