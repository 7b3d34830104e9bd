"""What a session can be asked, by subject; `session.Session` is all of it."""
