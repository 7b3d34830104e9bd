"""Profiles of a session's models: timed, compared, kept with their states."""
