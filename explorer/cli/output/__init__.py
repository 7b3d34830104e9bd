"""Output of a verb: its answer's form, and progress on the terminal."""
