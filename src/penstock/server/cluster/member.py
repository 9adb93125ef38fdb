"""What one member does, from what it hears: of the register, of other members, of its own server, and of time.

It follows with a copy of the log, or it sends the log that its server writes.  Who leads, and whose ack a confirm waits
for, are the rules of `penstock.replication`; this carries them out.  It has no socket, thread or clock: `Outside` is
told what is to be done, and tells what came of it.

    register_read, swapped, connected, heard, gathered, lost, taken     the others
    log_at, log_synced, moves, booted, hand_over, broken                its own server, while it leads
    tick                                                                time
"""

from __future__ import annotations

import logging

from penstock.errors import ProtocolError
from penstock.log.replica import ALONE, Beside, Replica
from penstock.ports import Disk
from penstock.replication.election import Election, End, Outcome, Read, Role, Swap, TakeOver
from penstock.replication.messages import Copy, Message
from penstock.replication.register import ClusterState, end_of_line, written
from penstock.replication.terms import in_stretches
from penstock.server.cluster import folder
from penstock.server.cluster.followers import ANEW, Followers
from penstock.server.cluster.following import Following, Mine
from penstock.server.cluster.log_sending import Link
from penstock.server.cluster.membership import Outside, Terms, mine_of, no_longer, not_ours
from penstock.server.cluster.talking import Talks

logger = logging.getLogger("penstock.cluster")

HANDS_OVER = "it hands over"
"""A leader's last word when the register names who is next."""

AGAIN = 200_000
"""Microseconds after which a leader that could not be reached is called again."""

SOON = 1_000_000
"""Microseconds after which who follows nobody looks at the register again: with a long lease beats are far apart."""


class Member(Followers):
    """One, from the start of its process to its end.  After `Outside.end` it does nothing."""

    def __init__(self, disk: Disk, known: folder.Known, terms: Terms, outside: Outside, beside: Beside = ALONE) -> None:
        """disk: locked.  known: of this start.  LogDamaged, OSError."""
        self.replica: Replica | None = Replica(disk, 0, beside)
        election = Election(
            known.member, last_lsn=self.replica.last, highest_term=known.highest_term, min_in_sync=terms.min_in_sync,
            times=terms.times, now=outside.now(), intact=known.intact, local=terms.local,
            mine=mine_of(known, terms) if terms.manual else None,
        )  # fmt: skip
        super().__init__(disk, known, terms, outside, election)
        self.following: Following | None = None
        self._cut = 0  # records, before it led
        self.talks = Talks(self, outside.call) if terms.manual else None
        self._registered = False
        self._read_at = -(1 << 60)
        self._calling = False
        self._called_at = -(1 << 60)
        self._heard_at = 0  # of the leader, in the stream
        self._ended = False

    @property
    def _silence(self) -> int:
        """After so long without a word a stream has ended, though nobody said so: four beats."""
        return 2 * self.terms.times.renew

    @property
    def cut_records(self) -> int:
        """Records that were cut off the log, and kept aside, since another leader's goes on without them."""
        return self._cut if self.replica is None else self.replica.recovery.cut_records

    # the register

    def register_read(self, version: int, state: ClusterState) -> None:
        """The register holds this."""
        if self._ended or version < self._version:
            return
        self._version, self.state = version, state
        there, mine = state.members.get(self.me), mine_of(self.known, self.terms)
        refusal = not_ours(self.known, state, 0 if self.replica is None else self.replica.origin)
        if refusal := refusal or no_longer(self.known, state, mine, registered=self._registered and self.talks is None):
            self._end(refusal)
            return
        if not self.known.cluster:
            self._keep(self.known._replace(cluster=state.cluster))
        if self.talks is not None:
            self.knows_of(state.term)  # its leader lists us, and others
            self._cut_what_is_aside(state)
            if state.numbers > self.known.numbers:
                self._keep(self.known._replace(numbers=state.numbers))
        elif there != mine:
            self._own_swap(state.with_member(self.me, mine))
            return
        self._registered = there is not None and there == mine.numbered(there.number)
        if there is not None and not self.known.listed:
            self._keep(self.known._replace(listed=True))
        self.election.read(version, state, self._out.now())
        if self.election.intact is not self.known.intact:
            self._set_intact(self.election.intact)
            if not self.election.intact:
                self._lacks(state)
        self._do()
        self._look_for_leader()

    def _lacks(self, state: ClusterState) -> None:
        """This copy has not all that it had: call again, as one that is not intact."""
        self.trouble = (
            f"this folder's log ends at LSN {0 if self.replica is None else self.replica.last}, and it had all up "
            f"to LSN {state.committed}: it is an older copy, or was damaged; it is copied again from the leader"
        )
        self._stop_following()

    def swapped(self, outcome: Outcome, value: ClusterState, *, own: bool) -> None:
        """What became of a swap."""
        if self._ended:
            return
        if isinstance(outcome, int):
            self._version, self.state, self.trouble = outcome, value, ""
        if own:
            self._registering = False
            self._read_at = -(1 << 60)
            return
        self.election.swapped(outcome, self._out.now())
        self._do()
        self._tell()
        if self.talks is not None and isinstance(outcome, int):
            self.talks.soon()
            for sending in self.sendings.values():  # in line with the log: nobody counts by a copy that is older
                self.talks.tell(sending.link)
        if isinstance(outcome, int) and value.to is not None and self.leads:
            for sending in list(self.sendings.values()):
                sending.close(HANDS_OVER)
            self.sendings.clear()

    def _look_at_register(self) -> None:
        if not self._ended:
            self._read_at = self._out.now()
            self._out.read()

    # where each member has a copy of the register

    def knows_of(self, term: int) -> None:
        """Keep a term as one that was made."""
        self._raise_term(term)

    def adopt(self, state: ClusterState) -> None:
        """Have another's copy in the place of ours; it is looked at as it is read back."""
        if self.role in (Role.JOINING, Role.FOLLOWING):
            self._own_swap(state)

    def yields(self, why: str) -> None:
        """Lead no more, for another one does, or both do."""
        self._end(why)

    def _cut_what_is_aside(self, state: ClusterState) -> None:
        """Have nothing in the log that our copy went on without: we may be told to lead before its leader is heard."""
        replica = self.replica
        if replica is None or self.leads or not state.terms:
            return
        end = end_of_line(state, in_stretches(state.base, replica.stretches, replica.last))
        if end is not None and end < replica.last:
            self._stop_following()
            replica.cut(end)
            self.election.log_ends(replica.last)

    def leave(self) -> None:
        """The server beside it has ended: a leader that has enough others need not wait for this one.

        Its copy of the register may be older than the leader's word that it is in sync.
        """
        following, state = self.following, self.state
        if self.talks is None or following is None or not following.term or state is None:
            return
        if len({*state.in_sync, self.me}) > self.terms.min_in_sync:
            following.decline()

    def _keep(self, known: folder.Known) -> None:
        self.known = known
        folder.write(self.disk, known)

    def _set_intact(self, intact: bool) -> bool:
        """The log has all that was acked; or it is about to lose it, or has lost it, and is no candidate.

        False: its own copy of the register still has it in sync, and a person would believe that.
        """
        state = self.state
        told = self.talks is not None and state is not None and not state.given_up and self.me in state.in_sync
        if intact and told and not self.known.intact:
            return False
        if intact:
            self.election.level()
        else:
            self.election.incomplete()
        if self.known.intact != intact:
            self._keep(self.known._replace(intact=intact))
        return True

    # time

    def tick(self) -> None:
        """Do what is due: some times in a beat."""
        if self._ended:
            return
        now = self._out.now()
        every = self.terms.times.renew // 2
        if not self.leads and now - self._read_at >= (every if self.following is not None else min(every, SOON)):
            self._read_at = now
            self._out.read()
        if self.talks is not None:
            self._talk(self.talks)
        self._do()
        if self.leads:
            for link, sending in list(self.sendings.items()):
                if now - sending.heard_at > self.terms.times.lease:
                    link.close()
                    self.lost(link)
                    continue
                beat = 0 if self.state is None else self.state.beat
                sending.beat(beat, self.committed, now, every)
                self._pump(sending)
            self._name_next()
            self._out.may_lead(self.election.until(now))
        else:
            self._look_for_leader()

    def _talk(self, talks: Talks) -> None:
        talks.tick()
        if talks.asked and talks.rival is None:
            self.election.asked_others(self.known.highest_term)
        self._say_who_is_waited_for()

    def _do(self) -> None:
        """Carry out what the rules ask for."""
        if self._ended:
            return
        for step in self.election.steps(self._out.now()):
            match step:
                case Read():
                    self._read_at = self._out.now()
                    self._out.read()
                case Swap():
                    if self.role is Role.CAMPAIGNING:
                        self._stop_following()
                        if self.replica is not None:
                            self.replica.end()  # what it says of its log's end must hold for ever
                    self._out.swap(step.version, step.value, own=False)
                case TakeOver():
                    self._take_over(step)
                case End():
                    self._end(step.why)
                    return

    def _take_over(self, step: TakeOver) -> None:
        self._stop_following()
        replica, self.replica = self.replica, None
        assert replica is not None
        self._raise_term(step.term)
        before, self._cut = replica.last, replica.recovery.cut_records
        replica.close()
        self._out.lead(step.term, step.start, before)

    def _end(self, why: str) -> None:
        self._ended = True
        self.trouble = why
        self._stop_following()
        for sending in self.sendings.values():
            sending.close(why)
        self.sendings.clear()
        self._out.end(why)

    def _follows(self, term: int) -> bool:
        """Whether a leader of this term may be followed: the register's, as last seen; it is kept as one heard of.

        A stream's word alone raises no term: with a wrong one nobody else could ever be followed, or lead, from here.
        """
        if self.state is None or self.state.term != term:
            self._look_at_register()  # it may have gone on
            return False
        return self.talks is not None or self._raise_term(term)  # what counts there is our copy, which is kept already

    def _raise_term(self, term: int) -> bool:
        if term < self.known.highest_term:
            return False
        if term > self.known.highest_term:
            self._keep(self.known._replace(highest_term=term))
        return True

    # following

    def _look_for_leader(self) -> None:
        state, now = self.state, self._out.now()
        if self._ended or state is None or self.role not in (Role.JOINING, Role.FOLLOWING):
            return
        if not self._registered and self.talks is None:
            return
        if self.following is not None and (
            self._of_another(self.following, state) or now - self._heard_at > self._silence
        ):
            self._stop_following()  # of another leader, or half-open: nobody would tell
        if (
            self.following is not None
            or self._calling
            or state.leader in (None, self.me)
            or now - self._called_at < AGAIN
        ):
            return
        assert state.address is not None
        self._calling, self._called_at = True, now
        self._out.connect(state.address)

    def _of_another(self, following: Following, state: ClusterState) -> bool:
        """Whether whom it follows is not who leads by the register."""
        later = self.talks is not None and following.term > state.term
        return bool(following.term) and (following.term < state.term or later)

    def connected(self, link: Link) -> None:
        """The call to the leader was taken."""
        self._calling = False
        replica, state = self.replica, self.state
        if self._ended or replica is None or state is None or self.role not in (Role.JOINING, Role.FOLLOWING):
            link.close()
            return
        self._heard_at = self._out.now()
        mine = Mine(self.me, state.cluster, self.known.intact, written(state, replica.last))
        if self.talks is not None:
            terms = in_stretches(state.base, replica.stretches, replica.last)
            about, numbers = mine_of(self.known, self.terms), self.known.numbers
            mine = mine._replace(terms=terms, about=about, term=state.term, numbers=numbers)
            if state.leader is not None:
                mine = mine._replace(maker=state.members[state.leader].process)
        self.following = Following(link, replica, mine, self._follows, self._set_intact)

    def called(self, address: str, link: Link | None) -> None:
        """The call to tell our copy of the register was taken; None: it was not."""
        if self.talks is not None and not self._ended:
            self.talks.called(address, link)
        elif link is not None:
            link.close()

    def _stop_following(self) -> None:
        following, self.following = self.following, None
        if following is not None:
            following.close()

    # streams

    def taken(self, link: Link) -> None:
        """Somebody has called."""
        self._strangers.add(link)

    def heard(self, link: Link, message: Message) -> None:
        """One message of a link.  What is not as agreed ends the link."""
        if self._ended:
            return
        try:
            followed = self.following if self.following is not None and link is self.following.link else None
            if self.talks is not None and (isinstance(message, Copy) or self.talks.is_ours(link)):
                self.talks.heard(link, message, answers=followed is None)
            elif followed is not None:
                self._heard_of_leader(followed, message)
            elif (sending := self.sendings.get(link)) is not None:
                self._heard_of_follower(sending, message)
            elif link in self._strangers:
                self._hello(link, message)
        except ProtocolError as error:
            if self.trouble != str(error):  # whoever is refused calls again several times a second
                self.trouble = str(error)
                logger.warning("a stream of the cluster ended: %s", error)
            link.close()
            self.lost(link)

    def gathered(self, link: Link) -> None:
        """All that had come by a link was heard."""
        if not self._ended and self.following is not None and link is self.following.link:
            self.following.gathered()

    def synced(self) -> bool:
        """A sync that the copy had begun has ended; False: nobody knows of one, for it was waited for."""
        replica = self.replica
        if replica is None or not replica.syncing:
            return False
        replica.end_sync()
        if not self._ended and self.following is not None:
            self.following.synced()
        return True

    def lost(self, link: Link | None) -> None:
        """A link has ended; None: the leader could not be reached."""
        if link is None:
            self._calling = False
        elif self.following is not None and link is self.following.link:
            handed = self.following.refusal == HANDS_OVER
            if self.talks is not None and self.following.refusal == ANEW:
                self._set_intact(False)  # so the leader may drop it
            self._stop_following()
            if handed:  # perhaps to us
                self._look_at_register()
        elif (sending := self.sendings.pop(link, None)) is not None:
            sending.close()
            if self.election.in_sync is not None:
                self.election.in_sync.gone(sending.member)
                self._do()
        if link is not None:
            self._strangers.discard(link)
            if self.talks is not None:
                self.talks.lost(link)

    def _heard_of_leader(self, following: Following, message: Message) -> None:
        replica, now = self.replica, self._out.now()
        self._heard_at = now
        following.heard(message)
        if not following.term or replica is None:
            return
        self.trouble = ""
        self.election.heard(following.term, following.beat, now)
        self.election.log_ends(replica.last)
