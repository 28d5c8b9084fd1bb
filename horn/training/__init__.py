"""The loop over batches, and the checkpoints from which it resumes with the same bits."""
