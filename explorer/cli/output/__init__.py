"""Output of commands: the form of the answer, and progress on the terminal."""
