"""Reading rows in the worker, without Spark: files of a version as Arrow record batches."""
