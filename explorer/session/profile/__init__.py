"""How long a session's models run: timed, compared, kept with their states."""
