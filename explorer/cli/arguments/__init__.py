"""What can be typed: verbs, options, and how words become them."""
