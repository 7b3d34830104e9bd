"""What each tab says, as lines."""
