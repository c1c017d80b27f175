"""Kubernetes as the engine under gpufleet: it starts and isolates what gpufleet decides (docs/operate/kubernetes.md)."""
