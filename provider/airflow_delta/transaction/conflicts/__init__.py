"""The conflict check: compares what a winning commit did with what a transaction read and wrote."""
