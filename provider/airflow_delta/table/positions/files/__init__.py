"""Files of a directory or bucket, each loaded once: COPY INTO, and ``new_files`` of functions."""
