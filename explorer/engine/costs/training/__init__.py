"""What a step of training costs."""
