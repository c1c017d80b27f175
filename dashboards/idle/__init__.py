"""Hoarding (HLT-5): allocations that stay idle become episodes, with owner, start and cost; policies notify, warn and reclaim."""
