"""Undocumented facts about other libraries on which the engine relies.

Each library has one file, and each assumption one function. The function's docstring has three parts.
`Assumes:` states the undocumented fact. `Seen:` names the versions in which it was tested. `Otherwise:`
states what the function does if the fact does not hold. It then works more slowly or raises one clear error,
but never gives a traceback or a wrong number.
"""
