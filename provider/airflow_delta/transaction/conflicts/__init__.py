"""The conflict check: what a winning commit did against what a transaction read and wrote."""
