"""What the screen can be asked: commands, jobs, files to write."""
