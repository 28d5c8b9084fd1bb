"""Connections between processes: frames, probes, and the admission of strangers."""
