"""The loop over batches, and what is kept so that it can go on as if it had never stopped."""
