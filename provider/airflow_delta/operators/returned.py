"""The error of a function that returned something else than a Spark DataFrame."""

from __future__ import annotations

from typing import Any

from airflow_delta.exceptions import DeltaIllegalArgumentException

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
        if purpose == "to write":
            way_out = f'Set engine="arrow" to write it without Spark, or return {convert}.'
    elif result is None:
        way_out = "Return the DataFrame instead of writing it; to stop without writing, raise AirflowSkipException."
    else:
        way_out = "To stop without writing, raise AirflowSkipException."
    return DeltaIllegalArgumentException(
        f"The function of the task {task_id!r} returned {name}, expected a Spark DataFrame (pyspark.sql.DataFrame) of the rows "
        f"{purpose}. {way_out}"
    )
