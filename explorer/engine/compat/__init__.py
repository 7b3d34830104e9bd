"""Undocumented facts about other libraries on which the engine relies.

Each library has one file, and each assumption one function, class or constant. Its docstring has three parts.
`Assumes:` states the undocumented fact. `Seen:` names the versions in which it was tested. `Otherwise:`
states the result if the fact does not hold: slower work, one clear error, a bound, or something that is not
noticed. No traceback is shown.
"""
