"""What the GPUs do: frames as they come in, roll-ups over time, and the sources that they come from."""
