"""The plugin of Airflow that serves the pages."""
