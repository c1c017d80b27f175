"""The gap: what of the fleet does not compute, by cause, team, class, type and pool. Its parts add up to the fleet, to the thousandth of a GPU."""
