"""Windows of the stars of one partition: insert, fold, read, due."""
