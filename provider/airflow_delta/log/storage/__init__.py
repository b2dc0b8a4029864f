"""Log stores: local files and object stores with an atomic put, and the names of the files in the log."""
