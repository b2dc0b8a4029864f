"""Errors that rows may raise while they are written, by the text that Spark reports."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from airflow_delta.contract.table_rules import refused_rows
from airflow_delta.exceptions import DeltaError

if TYPE_CHECKING:
    from pyspark.sql import Column


class RowChecks:
    """Errors that rows may raise while they are written, by the text that Spark reports."""

    def __init__(self, table: str, version: int) -> None:
        self.table = table
        self.version = version
        self._errors: dict[str, type[DeltaError]] = {}

    def violated(self, error: type[DeltaError], message: str, values: Column | None = None) -> Column:
        """Return an expression that raises ``error`` for a row.

        :param values: the row's values as text, for the message.
        """
        tail = refused_rows(self.table, self.version)
        if values is None:
            self._errors[re.escape(message + tail)] = error
            return sf.raise_error(sf.lit(message + tail))
        self._errors[f"{re.escape(message)}: .*?{re.escape(tail)}"] = error
        return sf.raise_error(sf.concat(sf.lit(f"{message}: "), values, sf.lit(tail)))

    def error(self, error: type[DeltaError], message: str) -> DeltaError:
        """Return the error of rows none of which can be written, whatever their values."""
        return error(message, table=self.table, version=self.version)

    def error_in(self, failure: BaseException) -> DeltaError | None:
        """Return the error that a row raised in a failed Spark job, ``None`` if it failed for another reason."""
        text = str(failure)
        for pattern, error in self._errors.items():
            if found := re.search(pattern, text, re.DOTALL):
                return error(found[0], table=self.table, version=self.version)
        return None
