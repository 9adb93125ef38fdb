"""What members tell each other of who leads, where each has a copy of the register and a person decides.

Each calls every other one, whoever leads, and they tell each other their copies about once a second.  A copy that goes
on from ours is taken over, and a leader that hears of it ends.  One that went on without ours, as ours did without it,
is kept beside it: then neither leads any more until a person has said which of both is to be set aside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.errors import InvalidArgument, ProtocolError, told_as
from penstock.replication.messages import Copy, Message
from penstock.replication.register import ClusterState, Verdict, compared, decode
from penstock.server.cluster import folder
from penstock.server.cluster.log_sending import Link

if TYPE_CHECKING:
    from penstock.ports import Disk
    from penstock.server.cluster.membership import Terms

logger = logging.getLogger("penstock.cluster")

PATIENCE = 3_000_000
"""Microseconds after which a member that has just started waits for no other one's copy any more."""


class Speaker(Protocol):
    """Whose copy it is: a member."""

    terms: Terms
    disk: Disk
    trouble: str

    @property
    def state(self) -> ClusterState | None: ...
    @property
    def me(self) -> str: ...
    @property
    def leads(self) -> bool: ...
    @property
    def intact(self) -> bool: ...
    def now(self) -> int: ...
    def knows_of(self, term: int) -> None:
        """Keep it as one that was made."""

    def adopt(self, state: ClusterState) -> None:
        """Have this in the place of our copy."""

    def yields(self, why: str) -> None:
        """Lead no more, since another one does, or both do."""


class Talks:
    """How one member tells its copy of the register to the others, and hears theirs, once a second."""

    def __init__(self, speaker: Speaker, call: Callable[[str], None]) -> None:
        """call: reaches out to an address; `called` or `lost` follow."""
        self._speaker, self._call = speaker, call
        self._links = dict[str, Link]()  # address -> who was called there
        self._calling = set[str]()
        self._asked = set[str]()  # who has told a copy in this life, or could not be reached
        self._since = speaker.now()
        self._told_at = -(1 << 60)
        data = folder.read_rival(speaker.disk)
        self._rival = None if data is None else decode(data)

    @property
    def asked(self) -> bool:
        """Whether every other member that can be reached has told its copy."""
        if self._speaker.state is None:
            return False  # it is not known yet who there is
        return self._addresses() <= self._asked or self._speaker.now() - self._since > PATIENCE

    @property
    def rival(self) -> ClusterState | None:
        """A copy that went on without ours, as ours did without it; None: there is none, or it was set aside."""
        ours, rival = self._speaker.state, self._rival
        if ours is None or rival is None or compared(ours, rival) not in (Verdict.RIVAL, Verdict.TWICE):
            return None
        return rival

    def tick(self) -> None:
        """Tell the others, when it is time."""
        now = self._speaker.now()
        if now - self._told_at < self._speaker.terms.times.renew:
            return
        self._told_at = now
        for address in sorted(self._addresses()):
            if (link := self._links.get(address)) is not None:
                self.tell(link)
            elif address not in self._calling:
                self._calling.add(address)
                self._call(address)

    def soon(self) -> None:
        """There is something new to tell."""
        self._told_at = -(1 << 60)

    def tell(self, link: Link) -> None:
        """Our copy, as it is known to be kept."""
        state = self._speaker.state
        link.send(Copy(b"" if state is None or state.leader is None else state.encode()))

    def called(self, address: str, link: Link | None) -> None:
        """A call was taken; None: it was not."""
        self._calling.discard(address)
        if link is None:
            self._asked.add(address)
        else:
            self._links[address] = link
            self.tell(link)

    def lost(self, link: Link) -> None:
        """A link has ended: whoever was there is called again."""
        for address in [one for one, other in self._links.items() if other is link]:
            del self._links[address]
            self._asked.add(address)

    def is_ours(self, link: Link) -> bool:
        """Whether we have called it to tell our copy."""
        return link in self._links.values()

    def heard(self, link: Link, message: Message, *, answers: bool) -> None:
        """A copy, of whoever called or was called.  ProtocolError ends the link.

        answers: it called us, and hears ours; whom we called does not, or each copy would bring another without an end
        """
        if not isinstance(message, Copy):
            raise ProtocolError(f"a member does not say {type(message).__name__.lower()} here")
        addresses = [one for one, other in self._links.items() if other is link]
        if answers and not addresses:
            self.tell(link)
        if len(message.data):
            with told_as(ProtocolError, instead=InvalidArgument):
                self._compare(decode(bytes(message.data)))
        self._asked.update(addresses)

    def _addresses(self) -> set[str]:
        speaker, state = self._speaker, self._speaker.state
        found = set(speaker.terms.others)
        if state is not None:
            found |= {one.address for key, one in state.members.items() if key != speaker.me}
        return found - {speaker.terms.address}

    def _compare(self, theirs: ClusterState) -> None:
        speaker, ours = self._speaker, self._speaker.state
        if not theirs.manual:
            raise ProtocolError("it has no LSN from which terms are counted")
        if ours is None:
            speaker.adopt(theirs)
            return
        if (theirs.cluster, theirs.origin, theirs.base) != (ours.cluster, ours.origin, ours.base):
            raise ProtocolError(f"it is of cluster {theirs.cluster}, and this member of {ours.cluster}")
        speaker.knows_of(theirs.term)
        verdict = compared(ours, theirs)
        who = "nobody" if theirs.leader is None else theirs.members[theirs.leader].name
        ordered = ours.order and (ours.given_up or speaker.intact)
        if ours.term == theirs.term and (ordered or speaker.leads) and verdict is not Verdict.TWICE:
            return  # what a person has told us goes before what the leader of the same term says
        if ours.order and not ordered and verdict is Verdict.NEW:
            logger.warning("an order to lead is void: this member lacks what was confirmed, and nobody said --lose")
        if verdict is Verdict.NEW and speaker.leads:
            aside = _aside(ours, theirs)
            speaker.yields(f"{who} leads term {theirs.term}, which went on from term {ours.term} here{aside}")
        elif verdict is Verdict.NEW:
            speaker.adopt(theirs)
        elif verdict in (Verdict.RIVAL, Verdict.TWICE):
            self._against(theirs, who, verdict)

    def _against(self, theirs: ClusterState, who: str, verdict: Verdict) -> None:
        """Keep it, before anything else: a leader that is started again must not lead on."""
        speaker, ours = self._speaker, self._speaker.state
        assert ours is not None
        if self._rival is None or (self._rival.term, self._rival.leader) != (theirs.term, theirs.leader):
            folder.write_rival(speaker.disk, theirs.encode())
            self._rival = theirs
        if verdict is Verdict.TWICE:
            why = (
                f"TWO FOLDERS OF ONE MEMBER: another process made term {theirs.term} too, from a copy of the folder of "
                f"{who}; remove the older copy, and let it join anew"
            )
        else:
            why = (
                f"TWO LEADERS: {who} leads term {theirs.term}, and this member knows of term {ours.term}, led by "
                f"{ours.members[ours.leader].name if ours.leader is not None else 'nobody'}; both may have confirmed "
                "what the other lacks, so neither leads on: `penstock cluster promote` with --lose says which is set "
                "aside"
            )
        if speaker.leads:
            speaker.yields(why)
        elif speaker.trouble != why:
            speaker.trouble = why
            logger.critical("%s", why)


def _aside(ours: ClusterState, theirs: ClusterState) -> str:
    """What a leader has confirmed and another went on without, since a person said that it may be lost."""
    ends = [one.last for one in theirs.terms if one.term >= ours.term and one.last is not None]
    if ours.term not in (one.term for one in theirs.terms) or min(ends, default=0) >= ours.committed:
        return ""
    return (
        f" up to LSN {min(ends, default=0)}; what was confirmed here behind that, up to LSN {ours.committed} at least, "
        "is set aside, for a person said --lose: it will lie in cut/"
    )
