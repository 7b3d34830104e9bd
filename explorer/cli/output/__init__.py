"""What a verb answers with: an answer's form, and progress on the terminal."""
