"""Users, permissions, vhosts and limits.  All of it is server actions, for administrators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.client.link import Acting


class PeopleCalls(Acting):
    """Who may come in, and what they may do.

    Users and vhosts of the settings file are listed too; changing them is InvalidArgument: that is done in the file.
    """

    # -- users

    def users(self) -> list[dict[str, Any]]:
        """Every user: `name`, `tags`, `limits`."""
        return self._listed("users")

    def add_user(
        self,
        user: str,
        password: str | None = None,
        *,
        password_hash: str | None = None,
        hashing_algorithm: str | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        """Make a user, who may open no vhost until there is a permission.

        password_hash    instead, as RabbitMQ's definitions have it; with neither nobody can log in as this user
        Errors: PreconditionFailed when it is there already.
        """
        self.action(
            "user_set", user=user, password=password, password_hash=password_hash,
            hashing_algorithm=hashing_algorithm, tags=list(tags), new=True,
        )  # fmt: skip

    def change_password(
        self,
        user: str,
        password: str | None = None,
        *,
        password_hash: str | None = None,
        hashing_algorithm: str | None = None,
    ) -> None:
        """Another password; an empty one is none at all: then nobody can log in as this user.  NotFound."""
        self.action(
            "user_set", user=user, password=password, password_hash=password_hash,
            hashing_algorithm=hashing_algorithm, new=False,
        )  # fmt: skip

    def set_user_tags(self, user: str, *tags: str) -> None:
        """These tags and no others: administrator, monitoring, policymaker, management.  NotFound."""
        self.action("user_set", user=user, tags=list(tags), new=False)

    def delete_user(self, user: str) -> None:
        """Remove a user with permissions and limits; connections close.  NotFound."""
        self.action("user_delete", user=user)

    # -- permissions

    def permissions(self, user: str | None = None, *, vhost: str | None = None) -> list[dict[str, Any]]:
        """What users may do: `user vhost configure write read`; of one user, or in one vhost."""
        return self._listed("permissions", user=user, vhost=vhost)

    def set_permissions(self, user: str, configure: str, write: str, read: str, *, vhost: str | None = None) -> None:
        """What a user may do in a vhost (that of the connection by default): three RE2, found anywhere in a name."""
        where = vhost or self.vhost
        self.action("permission_set", user=user, vhost=where, configure=configure, write=write, read=read)

    def clear_permissions(self, user: str, *, vhost: str | None = None) -> None:
        """The user may not open the vhost any more.  NotFound when there is no permission."""
        self.action("permission_delete", user=user, vhost=vhost or self.vhost)

    # -- vhosts

    def vhosts(self) -> list[dict[str, Any]]:
        """Those that the user may open, or all for one who sees everything."""
        return self._listed("vhosts")

    def add_vhost(self, vhost: str, *, description: str | None = None, tags: Sequence[str] | None = None) -> None:
        """Make a vhost.  PreconditionFailed when it is there already."""
        self.action(
            "vhost_set", vhost=vhost, description=description, tags=None if tags is None else list(tags), new=True
        )

    def delete_vhost(self, vhost: str) -> None:
        """Remove a vhost with its queues, exchanges, topics, policies and permissions; its connections close."""
        self.action("vhost_delete", vhost=vhost)

    # -- limits

    def limits(self) -> list[dict[str, Any]]:
        """Users and vhosts that have limits: `user` or `vhost`, and `value`, limits by name."""
        return self._listed("limits")

    def set_user_limit(self, user: str, limit: str, value: int | None) -> None:
        """`max-connections` or `max-channels`; None: no such limit."""
        self.action("limit_set", user=user, limit=limit, value=value)

    def set_vhost_limit(self, vhost: str, limit: str, value: int | None) -> None:
        """`max-connections` or `max-queues`; None: no such limit."""
        self.action("limit_set", vhost=vhost, limit=limit, value=value)
