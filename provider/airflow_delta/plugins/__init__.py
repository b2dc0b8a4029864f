"""What the provider adds to Airflow's UI: the pages "Delta tables"."""
