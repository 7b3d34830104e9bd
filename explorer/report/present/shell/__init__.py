"""What commands for the shell and the program itself say."""
