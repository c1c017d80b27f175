"""gpufleet: operator console and scheduler for a shared fleet of GPUs."""

__version__ = "0.1.0"
