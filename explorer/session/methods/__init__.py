"""Methods of a session that no feature adds: functions by subject, which `session.Session` has."""

from explorer.session.methods import changes, exports, figures, states

__all__ = ["changes", "exports", "figures", "states"]
