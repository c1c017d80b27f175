"""A real Slurm for tests (`gpufleet.throwaway_slurm`)."""

from gpufleet.throwaway_slurm import PATH, Slurm, missing

__all__ = ["PATH", "Slurm", "missing"]
