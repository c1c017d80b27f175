"""Traces of other fleets as scenarios that `gpufleet simulate` plays: the text of files in, plain data out."""

MOST_OWN_DAYS = 365  # of this fleet's own past
