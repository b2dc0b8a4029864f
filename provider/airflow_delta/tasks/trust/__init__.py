"""What XComs say is not believed: handles and reports are compared with the Dag file and with Airflow's states."""
