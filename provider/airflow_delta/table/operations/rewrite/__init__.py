"""DELETE, UPDATE and TRUNCATE, and what every rewrite of rows shares."""
