"""Two models side by side: which rows are on show, how they are drawn, the screen, and which two."""
