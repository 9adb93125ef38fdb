"""`[cluster]`: with which others this server keeps one log."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, StrictInt, model_validator

from penstock.config.doors import Address, Listen
from penstock.config.sections import Duration, Name, Section

LEAST_SECRET = 16


class ClusterSection(Section):
    """`[cluster]`"""

    registry: Name = Field(
        description="Where it is kept who leads: `etcd://host:port,host:port/prefix`, or `file:///folder` for members "
        "of one machine or one NFSv4 folder."
    )
    listen: Listen = Field(
        default=Address("127.0.0.1", 8817), description="Where other members copy this server's log while it leads."
    )
    advertise: Name | None = Field(
        default=None, description="host:port at which the others reach that.  Default: `listen` as it is."
    )
    secret: SecretStr = Field(
        description="The same for all members: who has it may copy the log.  At least 16 characters."
    )
    min_in_sync: StrictInt = Field(
        default=2, ge=1, le=16, description="A confirm is on at least so many disks; 1: serve alone rather than wait."
    )
    confirm: Literal["in-sync", "local"] = Field(
        default="in-sync",
        description="What a confirm waits for: every disk that could take over, or the leader's own alone, which loses "
        "what was not copied yet when another takes over.",
    )
    certificate: Name | None = Field(
        default=None, description="TLS between members: file of this member's certificate, PEM, for its address."
    )
    key: Name | None = Field(default=None, description="File of its private key, PEM, without a password.")
    ca: Name | None = Field(default=None, description="File of the CA that the certificates of all members are of.")
    lease: Duration = Field(
        default=5_000_000, ge=500_000, le=300_000_000, description="Silence of the leader after which another leads."
    )
    ack_timeout: Duration = Field(
        default=3_000_000,
        ge=200_000,
        le=300_000_000,
        description="A follower that has not said for so long that its disk has all is not waited for any more.",
    )
    stall: Duration = Field(
        default=10_000_000,
        ge=500_000,
        le=600_000_000,
        description="A leader whose commits or whose loop stand so long gives up.",
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.listen is None:
            raise ValueError("listen = off: members could not copy the log of this one while it leads")
        if len(self.secret.get_secret_value()) < LEAST_SECRET:
            raise ValueError(f"secret has fewer than {LEAST_SECRET} characters")
        given = [name for name in ("certificate", "key", "ca") if getattr(self, name) is not None]
        if 0 < len(given) < 3:
            there = " and ".join(given)
            raise ValueError(f"{there} without the rest: TLS between members takes certificate, key and ca")
        return self

    @property
    def tls(self) -> tuple[str, str, str] | None:
        """Files of certificate, key and CA; None: without TLS."""
        if self.certificate is None or self.key is None or self.ca is None:
            return None
        return self.certificate, self.key, self.ca
