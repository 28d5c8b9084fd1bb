"""A task process, from its job description to its last message."""
