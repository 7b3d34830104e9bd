"""Undocumented facts about other libraries on which the engine relies.

There is one file for each library and one function for each assumption. The function's docstring has three
parts. `Assumes:` states the undocumented fact. `Seen:` names the versions in which it was tested.
`Otherwise:` says what the function does if the fact does not hold: it works more slowly or raises one clear
error, but never gives a traceback or a wrong number.
"""
