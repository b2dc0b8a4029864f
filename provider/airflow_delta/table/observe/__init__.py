"""Reading what a table and its commits are, and waiting for commits."""
