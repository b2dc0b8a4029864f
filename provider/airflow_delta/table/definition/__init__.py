"""CREATE, REPLACE and ALTER TABLE: the definition that a table gets."""
