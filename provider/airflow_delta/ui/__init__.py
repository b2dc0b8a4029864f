"""The pages "Delta tables" in Airflow's UI."""
