"""Selected fields of an Avro record, read without building the rest of it."""
