"""Reads what is selected of Avro records, at the speed of the regular-expression engine."""
