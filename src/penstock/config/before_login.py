"""`[before_login]`: what a door allows somebody who has not said who he is.  The same table for all doors."""

from __future__ import annotations

from pydantic import Field, StrictInt

from penstock.config.sections import MIB, Duration, Section, Size


class BeforeLogin(Section):
    """`[before_login]`"""

    time: Duration = Field(
        default=10_000_000,
        ge=100_000,
        le=3600_000_000,
        description="From the connection to the login, TLS's handshake included; over HTTP for each request's headers.",
    )
    bytes: Size = Field(
        default=64 * 1024,
        ge=4096,
        le=MIB,
        description="What a client may send before its login: a handshake, or the headers of a request.",
    )
    flight_bytes: Size = Field(
        default=4 * MIB,
        ge=64 * 1024,
        le=64 * MIB,
        description="What may come on a Flight connection before its first call is let in; 32 times that on all.",
    )
    sockets: StrictInt = Field(
        default=512, ge=8, le=65_536, description="Connections of a door that have not logged in; further ones wait."
    )
    per_address: StrictInt = Field(
        default=64, ge=4, le=65_536, description="The same from one address, before those who are silent have to go."
    )
    wrong_logins: StrictInt = Field(
        default=10,
        ge=1,
        le=1_000_000,
        description="Wrong passwords for a user from one address, ten times as many for all users; then one a second.",
    )
