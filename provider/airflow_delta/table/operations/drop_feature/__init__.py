"""DROP FEATURE of features that leave traces in the log or in data files, and REMOVE COLUMN MAPPING."""
