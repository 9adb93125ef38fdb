"""`[tls]`: the certificate that the doors with TLS show, and what they ask of their clients.

Owns names, types and what excludes what.  Whether the files are there and fit each other is `server.tls.files`'.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, StrictBool, model_validator

from penstock.config.sections import Name, Section

DOORS = ("amqps", "https", "flight_tls")
"""Keys of `[listen]` that need it."""


class TlsSection(Section):
    """`[tls]`"""

    certificate: Name | None = Field(
        default=None, description="File of the server's certificate, PEM, with those between it and its CA behind it."
    )
    key: Name | None = Field(default=None, description="File of its private key, PEM, without a password.")
    ca: Name | None = Field(default=None, description="File of the CA certificates that clients' own are checked by.")
    verify: Literal["none", "peer"] = Field(
        default="none", description='Whether clients are asked for a certificate: "peer" does, and checks what it gets.'
    )
    fail_if_no_peer_cert: StrictBool = Field(
        default=False, description='Whether a client without a certificate is sent away; with verify = "peer".'
    )
    cert_login_from: Literal["common_name"] | None = Field(
        default=None,
        description="What of a client's certificate is its user over AMQP (SASL EXTERNAL).  Unset: not offered.",
    )
    min_version: Literal["1.2", "1.3"] = Field(default="1.2", description="The oldest TLS that is spoken.")

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            there, absent = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise ValueError(f"{there} is there and {absent} is missing: one goes with the other")
        if self.verify == "peer" and self.ca is None:
            raise ValueError('verify = "peer" needs ca: the file of the CA certificates to check clients by')
        for name, given in (
            ("fail_if_no_peer_cert", self.fail_if_no_peer_cert),
            ("cert_login_from", self.cert_login_from is not None),
        ):
            if given and self.verify != "peer":
                raise ValueError(f'{name} needs verify = "peer": otherwise no client is asked for a certificate')
        return self
