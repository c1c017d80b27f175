"""Fingerprints: how jobs of a template use their GPUs, phase by phase (HLT-9)."""
