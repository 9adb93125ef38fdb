"""Who may open which vhost, and how many connections and channels there may be: permissions and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.server.amqp.session import Session
    from penstock.server.users import Users


class Admission:
    """Asked when a connection opens its vhost, and when it opens a channel."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def to_vhost(self, session: Session, vhost: str) -> str | None:
        """Why the session may not open the vhost, None if it may.  Whoever has opened one counts."""
        user, accounts = session.user, self._users.accounts
        if not self._users.enters(user, vhost):
            return f"access to vhost '{vhost}' refused for user '{user}'"
        most = accounts.limits_of_vhosts().get(vhost, {}).get("max-connections", -1)
        if most >= 0 and sum(one.opened and one.vhost == vhost for one in session.door.sessions) >= most:
            return f"access to vhost '{vhost}' refused for user '{user}': connection limit ({most}) is reached"
        most = accounts.limits_of_users().get(user, {}).get("max-connections", -1)
        if most >= 0 and sum(one.opened and one.user == user for one in session.door.sessions) >= most:
            return f"connection refused for user '{user}': user connection limit ({most}) is reached"
        return None

    def to_channel(self, session: Session) -> str | None:
        """Why the session may not have one more channel than it has now."""
        most = self._users.accounts.limits_of_users().get(session.user, {}).get("max-channels", -1)
        if most < 0 or sum(len(one.channels) for one in session.door.sessions if one.user == session.user) < most:
            return None
        return f"number of channels opened for user '{session.user}' has reached the user's limit ({most})"
