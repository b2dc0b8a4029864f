"""The tasks between the stages and the commit of a transaction: whether they succeeded, and what they have seen."""
