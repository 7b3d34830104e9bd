"""Commands for the shell that Explorer is called from."""
