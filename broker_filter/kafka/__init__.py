"""In and out: consumer, producer, transactions, and their twins in memory."""
