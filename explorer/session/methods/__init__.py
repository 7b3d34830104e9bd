"""Methods of a session that no feature adds: functions by subject, which `session.Session` has."""

from explorer.session.methods import exports, figures, states

__all__ = ["exports", "figures", "states"]
