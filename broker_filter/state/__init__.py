"""What a partition holds, as columns, and its snapshots in a store."""
