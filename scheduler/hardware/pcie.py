"""What a PCIe link carries."""

# Bytes a second of one lane, one way, by generation, without the coding of the line.
LANE_BYTES = {1: 250e6, 2: 500e6, 3: 984.6e6, 4: 1_969e6, 5: 3_938e6, 6: 7_563e6}


def link_gbps(generation: int | None, width: int | None) -> int | None:
    """GB/s one way, as operators write it: 31 for 16 lanes of generation 4. None where it is not known."""
    lane = LANE_BYTES.get(generation or 0)
    return None if lane is None or not width else int(lane * width // 1e9)


def carried(gbps: int, lost_percent: int) -> int:
    """What is left of a bandwidth."""
    return gbps * (100 - lost_percent) // 100
