"""Spark SQL expressions over record batches: :func:`~airflow_delta.table.arrow.expressions.row_expression.row_expression`."""
