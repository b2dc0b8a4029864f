"""What tasks that commit share: their parameters, the race for a version, and what Airflow learns about the commit."""
