"""Prometheus servers that scrape NVIDIA's DCGM exporter, as a source of telemetry and of raw hardware state."""
