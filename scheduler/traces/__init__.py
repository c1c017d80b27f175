"""Traces of other fleets as scenarios that `gpufleet simulate` plays: the text of files in, plain data out."""
