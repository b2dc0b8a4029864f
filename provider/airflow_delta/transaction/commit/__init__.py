"""One optimistic transaction, from its first read to its put and the hooks after it."""
