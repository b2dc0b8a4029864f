"""The protocol's table features, with the properties and rules of each."""
