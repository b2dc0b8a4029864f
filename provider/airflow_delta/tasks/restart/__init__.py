"""Have Airflow run tasks again: those of a transaction, or outdated checks."""
