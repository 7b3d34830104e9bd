"""What a model costs while one of its sizes grows: closed forms of the figures, and where they cross."""
