"""Who may open which vhost, and how many connections and channels there may be: permissions and limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.records.rights import MONITORING

if TYPE_CHECKING:
    from penstock.server.amqp.connection import Connection
    from penstock.server.users import Users


class Admission:
    """Asked when a connection opens its vhost, and when it opens a channel."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def to_vhost(self, session: Connection, vhost: str, others: Iterable[Connection]) -> str | None:
        """Why the session may not open the vhost, None if it may or there is none.  Whoever has opened one counts.

        Only who sees all vhosts, or may open any, is told that there is none.
        """
        user, accounts = session.user, self._users.accounts
        if vhost not in accounts.vhosts and self._users.who(user).has(vhost, MONITORING):
            return None
        if not self._users.enters(user, vhost):
            return f"access to vhost '{vhost}' refused for user '{user}'"
        most = accounts.limits_of_vhosts().get(vhost, {}).get("max-connections", -1)
        if most >= 0 and sum(one.vhost == vhost for one in _open(others)) >= most:
            return f"access to vhost '{vhost}' refused for user '{user}': connection limit ({most}) is reached"
        most = accounts.limits_of_users().get(user, {}).get("max-connections", -1)
        if most >= 0 and sum(one.user == user for one in _open(others)) >= most:
            return f"connection refused for user '{user}': user connection limit ({most}) is reached"
        return None

    def to_channel(self, session: Connection, others: Iterable[Connection]) -> str | None:
        """Why the session may not have one more channel than it has now."""
        most = self._users.accounts.limits_of_users().get(session.user, {}).get("max-channels", -1)
        if most < 0 or sum(len(one.channels) for one in others if one.user == session.user) < most:
            return None
        return f"number of channels opened for user '{session.user}' has reached the user's limit ({most})"


def _open(some: Iterable[Connection]) -> Iterator[Connection]:
    """Those that have opened a vhost and are not on their way out."""
    return (one for one in some if one.opened and not one.closing)
