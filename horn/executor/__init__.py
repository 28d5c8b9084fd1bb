"""Starts the task processes of a job, watches them, restarts them, and leaves nothing behind."""
