"""Writing reservations, and the turn that keeps what they promise."""
