"""Where the log lies: stores with an atomic put, and the names of its files."""
