"""Methods of a session, what it can be asked, by subject; `session.Session` is all of it."""
