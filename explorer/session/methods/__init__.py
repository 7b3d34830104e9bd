"""Methods of a session that do not belong to a feature, as functions by subject.

`session.Session` has them as methods.
"""

from explorer.session.methods import changes, connections, exports, figure_methods, states

__all__ = ["changes", "connections", "exports", "figure_methods", "states"]
