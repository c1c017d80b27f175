"""Kubernetes for tests: a double of its API server, the real one where its programs are there, and nodes that run the programs of pods."""
