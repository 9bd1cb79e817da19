"""What an evaluation measures, one module a subject."""
