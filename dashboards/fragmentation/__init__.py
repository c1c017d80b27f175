"""Fragmentation: GPUs that are free and that no job could use as they lie, by cause, against the queue and against the usual demand."""
