"""Discovery, health states and lists of clusters, nodes and GPUs."""
