"""State of the screen: a store that widgets subscribe to, and the running job."""
