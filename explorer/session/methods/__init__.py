"""Methods of a session that no feature adds: functions by subject, which `session.Session` has."""

from explorer.session.methods import changes, connections, exports, figure_methods, states

__all__ = ["changes", "connections", "exports", "figure_methods", "states"]
