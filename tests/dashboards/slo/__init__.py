"""Service levels of inference jobs."""
