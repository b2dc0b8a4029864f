"""The actions of the Delta log: encoding, decoding and reconciling them, and reading and writing deletion vectors."""
