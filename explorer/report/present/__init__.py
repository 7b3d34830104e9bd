"""Facts put into words, once: a file a subject makes the blocks that text, screen and page draw."""
