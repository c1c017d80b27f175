"""Slurm as the engine under gpufleet: it carries out, isolates and accounts what gpufleet decides (docs/operate/slurm.md)."""
