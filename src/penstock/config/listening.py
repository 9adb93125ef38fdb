"""`[listen]`: where each door listens, and which doors there are.

A door with TLS needs the certificate of `[tls]`: `config.impossible` says so.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from penstock.config.sections import Section


class Address(NamedTuple):
    """Where a listener binds.  Port 0 picks a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(value: object) -> object:
    """An address from `host:port`, `[ipv6]:port`; None from `off`."""
    if not isinstance(value, str):
        return value
    if value == "off":
        return None
    host, colon, port = value.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{value!r} is not an address: write host:port, as in 127.0.0.1:5672, or off")
    if ":" in bare and bare == host:
        raise ValueError(f"{value!r} is not an address: write an IPv6 host in brackets, as in [::1]:5672")
    return Address(bare, int(port))


Listen: TypeAlias = Annotated[Address | None, BeforeValidator(_address)]


class Listeners(Section):
    """`[listen]`"""

    amqp: Listen = Field(
        default=Address("127.0.0.1", 5672), description="AMQP 0-9-1; `off` for none, port 0 for a free one."
    )
    http: Listen = Field(default=Address("127.0.0.1", 15672), description="Management, metrics and health; or `off`.")
    flight: Listen = Field(default=Address("127.0.0.1", 8815), description="Arrow Flight; or `off`.")
    amqps: Listen = Field(default=None, description="AMQP over TLS, as `127.0.0.1:5671`; needs `[tls]`.")
    https: Listen = Field(default=None, description="HTTP over TLS, as `127.0.0.1:15671`.")
    flight_tls: Listen = Field(default=None, description="Arrow Flight over TLS (`penstocks://`), as `127.0.0.1:8816`.")

    def doors(self) -> dict[str, Address]:
        """Those that are on, by name."""
        return {name: one for name in type(self).model_fields if (one := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def _apart(self) -> Listeners:
        taken: dict[Address, str] = {}
        for name, address in self.doors().items():
            if address.port == 0:
                continue
            if address in taken:
                raise ValueError(f"{taken[address]} and {name} cannot both listen on {address}")
            taken[address] = name
        return self
