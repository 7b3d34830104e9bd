"""The state of the screen: one store that widgets watch, and the job that runs for it."""
