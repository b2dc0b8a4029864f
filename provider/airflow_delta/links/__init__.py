"""Links from tasks to the pages of the tables that they wrote."""
