from airflow_delta.transaction.conflicts.carried_rows import CarriedRows as CarriedRows
