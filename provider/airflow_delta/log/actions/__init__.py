"""The actions of a commit, as they are encoded, decoded and reconciled."""
