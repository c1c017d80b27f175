"""What pages draw."""
