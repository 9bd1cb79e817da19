"""The pure core: intake, batches, assessment; time comes in as an argument."""
