"""From bytes to photometry: framing, our own formats, Avro records, survey packets."""
