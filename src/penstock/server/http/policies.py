"""Policies, as `wire.http.policies` asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.config.policies import read_policy
from penstock.errors import NotFound
from penstock.records.policies import Policy
from penstock.server.http.commands import Commands


class Policies(Commands):
    """Both kinds; tags were asked for."""

    def policies(self, vhost: str | None, *, operator: bool) -> Iterator[Mapping[str, object]]:
        """All of one kind, of one vhost or of all."""
        if vhost is not None:
            self.vhost(vhost)
        return map(policy_item, self.core.policies(vhost, operator=operator))

    async def put_policy(
        self,
        vhost: str,
        name: str,
        *,
        pattern: object,
        definition: object,
        priority: int,
        apply_to: str,
        operator: bool,
    ) -> bool:
        """Whether it is new."""
        self.vhost(vhost)
        policy = read_policy(vhost, name, pattern, definition, priority=priority, apply_to=apply_to, operator=operator)
        return await self.decide(lambda: self.core.set_policy(self.now(), policy))

    async def delete_policy(self, vhost: str, name: str, *, operator: bool) -> None:
        """What it did is undone."""
        self.vhost(vhost)
        try:
            await self.decide(lambda: self.core.delete_policy(self.now(), vhost, name, operator=operator))
        except NotFound:
            raise NotFound("Not Found") from None


def policy_item(policy: Policy) -> dict[str, object]:
    """One policy with RabbitMQ's field names."""
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }
