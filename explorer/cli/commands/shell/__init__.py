"""Commands about the program and the shell."""
