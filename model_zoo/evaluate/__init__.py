"""Evaluation of zoo entries on seeded sets that no training ever sees."""
