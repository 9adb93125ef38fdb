"""`[[link]]`: to which other sites messages of topics go, so that queues over them are shared."""

from __future__ import annotations

from typing import NamedTuple, Self
from urllib.parse import unquote

from pydantic import Field, SecretStr, StrictBool, field_validator, model_validator

from penstock.config.sections import Duration, File, Name, Section, refuse_half
from penstock.errors import InvalidArgument, told_as
from penstock.records.message_types import JSON, MESSAGE_TYPES, typed, wrong_type
from penstock.records.regular_expressions import topic_pattern
from penstock.units import format_address, shown_address, split_url

DEFAULT_PORT = 8815


class Target(NamedTuple):
    """One address of another site's Flight door."""

    host: str
    port: int
    tls: bool
    user: str = ""
    password: str = ""

    @property
    def location(self) -> str:
        """As Flight's client has it."""
        return f"{'grpc+tls' if self.tls else 'grpc'}://{format_address(self.host, self.port)}"

    def __str__(self) -> str:
        return f"penstock{'s' if self.tls else ''}://{format_address(self.host, self.port)}"


def target_of(url: str) -> Target:
    """The address in a URL.  ValueError says what is wrong with it."""
    parts = split_url(url)
    if parts.scheme not in ("penstock", "penstocks") or not parts.hostname:
        form = f"write penstock://host:{DEFAULT_PORT}, or penstocks:// for TLS"
        raise ValueError(f"{shown_address(url)!r} is no address of a site: {form}")
    if parts.query or parts.fragment or parts.path not in ("", "/"):
        raise ValueError(f"{shown_address(url)!r}: what stands behind the port means nothing here")
    try:
        port = DEFAULT_PORT if parts.port is None else parts.port
    except ValueError:
        raise ValueError(f"{shown_address(url)!r} has a port that is no number below 65536") from None
    return Target(
        parts.hostname, port, parts.scheme == "penstocks", unquote(parts.username or ""), unquote(parts.password or "")
    )


class LinkTopic(Section):
    """`topic` of `[[link]]`"""

    pattern: Name
    """A topic by its routing key, or a pattern of keys, as an `underlying_topic` is written."""
    exchange: str = ""
    """Its exchange; empty is the default one."""
    vhost: Name = "/"
    """Its vhost."""
    filter: str | None = None
    """Which of its messages go.  Queues want all of them."""
    message_type: str = Field(default=JSON, description=f"What the filter reads bodies as: {', '.join(MESSAGE_TYPES)}.")

    @model_validator(mode="after")
    def _readable(self) -> Self:
        if why := wrong_type(self.message_type):
            raise ValueError(why)
        topic_pattern(self.pattern)
        with told_as(ValueError, instead=InvalidArgument):
            typed(self.filter or "", self.message_type)
        return self


class LinkSection(Section):
    """`[[link]]`"""

    name: Name
    """The other site's `server.name`; of a cluster its `cluster.name`.  A site that says it has another name is
    refused."""
    to: tuple[str, ...] = Field(min_length=1)
    """Addresses of its Flight door, tried one after the other: `penstock://host:8815`, `penstocks://host:8816` with
    TLS; all members of a cluster."""
    group: Name | None = None
    """The group that it has to say it is in.  Unset: any."""
    sync: StrictBool = False
    """Whether confirms to publishers wait until this site has the message on its disk, too."""
    topic: tuple[LinkTopic, ...] = Field(min_length=1)
    """What goes there."""
    pass_through: tuple[Name, ...] = ()
    """Groups of sites, or patterns of groups, whose messages go on that came over a link: `.*` is all."""
    downgrade_after: Duration | None = Field(default=None, gt=0)
    """Confirms wait no longer than this for a site that does not answer: the link is asynchronous then."""
    upgrade_after: Duration | None = Field(default=None, gt=0)
    """It is synchronous again when what it owes is younger than this.  Default: half of `downgrade_after`."""
    level_within: Duration = Field(default=10_000_000, ge=0)
    """So long after a start the queues of this link wait for what that site has to tell of the time before, and deliver
    nothing: a site that was away may not own any more what it owned.  0: not at all."""
    user: Name | None = None
    """Who logs in there: an administrator.  Unset: the user of the address, else guest."""
    password: SecretStr | None = None
    """The password, or use password_file."""
    password_file: File | None = None
    """File whose first line is the password."""
    ca: File | None = None
    """With penstocks://: file of the CA of that site's certificate.  Unset: the system's."""
    certificate: File | None = None
    """File of a certificate to show there, PEM."""
    key: File | None = None
    """File of its private key, PEM, without a password."""

    @field_validator("to")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            target_of(one)
        return value

    @field_validator("pass_through")
    @classmethod
    def _groups(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            topic_pattern(one)
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.downgrade_after is not None and not self.sync:
            raise ValueError("downgrade_after is for sync = true: nothing waits for this link")
        if self.upgrade_after is not None:
            if self.downgrade_after is None:
                raise ValueError("upgrade_after goes with downgrade_after, which is missing")
            if self.upgrade_after > self.downgrade_after:
                raise ValueError("upgrade_after is longer than downgrade_after: the link would change to and fro")
        return self

    @model_validator(mode="after")
    def _credentials(self) -> Self:
        if self.password is not None and self.password_file is not None:
            raise ValueError("a link has either a password or a password_file")
        refuse_half(self.certificate, self.key)
        with_tls = [one for one in self.targets if one.tls]
        for name in ("ca", "certificate", "key"):
            if getattr(self, name) is not None and not with_tls:
                raise ValueError(f"{name} is for TLS: write an address with penstocks://")
        return self

    @property
    def targets(self) -> tuple[Target, ...]:
        """The addresses as hosts and ports, in the order of the setting."""
        return tuple(target_of(one) for one in self.to)

    @property
    def upgrade(self) -> int:
        """Microseconds: how old what it owes may be for it to be synchronous again."""
        return self.upgrade_after or (self.downgrade_after or 0) // 2
