"""Spark SQL expressions over record batches: :func:`~airflow_delta.table.expressions.row_expression.row_expression`."""
