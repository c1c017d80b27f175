"""Writes of hardware: health, geometry, discovery, import."""
