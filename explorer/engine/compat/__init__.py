"""Assumptions about other libraries: what they do not document and the engine relies on.

One file per library, one function per assumption. Its docstring has three parts: `Assumes:` the undocumented
fact, `Seen:` the versions where it was tried, and `Otherwise:` what the function does when the fact does not
hold. That is a slower way or one clear error, never a traceback and never a wrong number.
"""
