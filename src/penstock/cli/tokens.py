"""`token`: logins of one's own that end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import Told, family, served

if TYPE_CHECKING:
    from penstock.client import Client

app = family("token", "Logins of your own that end, for who should not have the password.")

Id = Annotated[str, typer.Argument(metavar="ID", help="Its id, as `penstock token list` shows it.")]
Lasts = Annotated[str, typer.Option("--lasts", help="How long it lasts, as in 15m; 7d at most.")]


@served(app, "list")
def list_(client: Client) -> Told:
    """List your tokens without their secrets; an administrator's list has everybody's.

    Example: penstock token list
    """
    return client.tokens(), ("id", "user", "label", "vhost", "configure", "write", "read", "tags", "ends")


@served(app)
def issue(
    client: Client,
    label: Annotated[str, typer.Argument(help="What you call it.")] = "",
    lasts: Lasts = "1h",
    read: Annotated[str, typer.Option("--read", help="Which queues and topics; RE2 of whole names.")] = ".*",
    write: Annotated[str, typer.Option("--write", help="The same of what is written to.")] = ".*",
    configure: Annotated[str, typer.Option("--configure", help="The same of what it may declare.")] = "",
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag of yours that it has, too.")] = None,
) -> Told:
    """Make a token, and print it.  It is told this once, and stands wherever a password does.

    Example: penstock token issue nightly --lasts 8h --read 'orders.*'
    """
    made = client.issue_token(lasts, label=label, read=read, write=write, configure=configure, tags=tag or ())
    return made, str(made["token"])


@served(app)
def renew(
    client: Client,
    token: Id,
    lasts: Annotated[str | None, typer.Option("--lasts", help="Another time than before.")] = None,
) -> Told:
    """Have a token last as long again from now on.  It takes the password.

    Example: penstock token renew x7Kq2MzP0aBc
    """
    done = client.renew_token(token, lasts)
    return done, f"token {token} lasts until {done['ends']}"


@served(app)
def revoke(client: Client, token: Id) -> Told:
    """End a token at once.

    Example: penstock token revoke x7Kq2MzP0aBc
    """
    client.revoke_token(token)
    return {"revoked": token}, f"token {token} is none any more"
