"""What happens to members of a simulated cluster, by chance: steps of any kind, and disasters after which one leads.

Each is a function of a world and a machine of it.  `run` takes random steps, `directed` lets disasters follow each
other, each in a cluster in which all were level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.errors import LogDamaged
from penstock.log.replica import Replica
from penstock.log.simdisk import SimDisk
from sim.members_machine import TIMES, Broken, Host
from sim.members_walks import PIECE
from sim.members_world import Action, Mood, World

WHILES = (1_000, 20_000, TIMES.renew // 2, TIMES.ack_timeout, TIMES.lease)
"""How far a clock goes on at once."""


def tick(world: World, host: Host) -> None:
    host.clock += world.rng.choices(WHILES, world.pace)[0]
    if host.member is not None:
        if host.log is not None and not host.log.broken and world.rng.random() < 0.95:
            host.member.moves(host.next_lsn, host.log.first_lsn)
        host.member.tick()


def event(world: World, host: Host) -> None:
    host.step()


def deliver(world: World, _: Host) -> None:
    links = [one for one in world.links if one.inbox]
    if links:
        link = world.rng.choice(links)
        world.at(link.host, lambda: link.deliver(world.rng.randint(1, 4)))


def publish(world: World, host: Host) -> None:
    host.publish()


def stage(world: World, host: Host) -> None:
    host.stage()


def upkeep(world: World, host: Host) -> None:
    host.upkeep()


def roll(world: World, host: Host) -> None:
    if host.log is not None and not host.log.broken:
        host.log.roll()
        host.log.flush()
        world.seen["rolls"] += 1


def cut(world: World, _: Host) -> None:
    """A connection breaks; one end may hear of it late, or never."""
    if world.links:
        link = world.rng.choice(world.links)
        link.host.later(link.end)
        if world.rng.random() < world.told_of_ends:
            link.other.host.later(link.other.end)
        else:
            link.other.inbox.clear()
            link.other.cut = True


def arrive(world: World, _: Host) -> None:
    """A swap whose answer is long lost lands."""
    if world.late:
        world.seen["late swaps"] += world.land(*world.late.pop(world.rng.randrange(len(world.late))))


def crash(world: World, host: Host) -> None:
    if world.rng.random() < 0.25:
        world.seen["crashes"] += 1
        host.stop(power=world.rng.random() < 0.6)


def start(world: World, host: Host) -> None:
    host.start()


def snapshot(world: World, host: Host) -> None:
    """Somebody copies a disk."""
    host.copy = SimDisk(host.disk.files()).files()


def revert(world: World, host: Host) -> None:
    """A machine gets an older copy of its disk, or loses its log.

    Only where another one that may be elected has everything, and the register can know better: it says once in a
    beat how far all are.
    """
    others = world.value.in_sync - {host.id} - world.reverted
    copy = host.copy
    if copy is None or not others or host.id not in world.value.in_sync:
        return
    if world.rng.random() < 0.3:
        copy = {name: content for name, content in copy.items() if not name.startswith("log/")}
    if Replica(SimDisk(copy), 0).last >= world.value.committed:
        return
    host.stop(power=True)
    host.disk, host.copy = SimDisk(copy, seed=world.rng.randrange(1 << 30)), None
    world.reverted.add(host.id)
    world.late.clear()  # one that drops the others would leave nobody who has everything
    world.seen["reverts"] += 1


def topple(world: World, _: Host) -> None:
    """Who leads writes a little more and dies; perhaps somebody else leads before it is back."""
    leader = world.leader()
    if leader is None:
        return
    world.seen["toppled"] += 1
    for _ in range(world.rng.randint(0, 2)):
        leader.publish()
    leader.idle()
    _fall(world, leader)


def _fall(world: World, leader: Host) -> None:
    """Who leads dies; perhaps somebody else leads before it is back."""
    leader.stop(power=world.rng.random() < 0.3)
    others = [one for one in world.hosts.values() if one is not leader]
    if world.rng.random() < 0.5:
        world.hush()
    for other in others:
        other.clock += TIMES.lease
    world.turns(others, world.rng.randint(0, 8))


def lull(world: World, host: Host) -> None:
    """All are level; who leads has nothing to write, says so where nobody hears it any more, and dies."""
    world.turns(world.hosts.values(), 3)
    if (leader := world.leader()) is not None:
        leader.idle()
        world.hush()
    topple(world, host)


def put_back(world: World, host: Host) -> None:
    """A machine gets an older copy of its disk, and may be asked to lead soon."""
    snapshot(world, host)
    world.turns(world.hosts.values(), 4)
    revert(world, host)
    host.start()
    topple(world, host)


def halve(world: World, host: Host) -> None:
    """Who leads dies while a file that the log needs soon is on its way."""
    world.turns(world.hosts.values(), 3)
    if (leader := world.leader()) is not None:
        leader.stage(9 * PIECE, 25 * PIECE)
        for _ in range(world.rng.randint(1, 4)):
            leader.step()
        leader.publish()
        for _ in range(world.rng.randint(1, 5)):
            for link in world.links:
                if link.host is not leader:
                    world.at(link.host, link.come)
        world.hush()
    topple(world, host)


def black_out(world: World, _: Host) -> None:
    """All machines lose power; one of those that did not lead is up first."""
    leader = world.leader()
    for one in world.hosts.values():
        one.stop(power=True)
        one.clock += TIMES.lease
    world.seen["black-outs"] += 1
    first = world.rng.choice([one for one in world.hosts.values() if one is not leader])
    world.turns([first], 1)
    first.clock += TIMES.lease
    world.turns([first], world.rng.randint(0, 8))


def overfill(world: World, _: Host) -> None:
    """The disk of who leads is full in the middle of a commit, and the others may have to lead by what they have."""
    world.turns(world.hosts.values(), 3)
    if (leader := world.leader()) is None:
        return
    leader.overfill()
    for link in world.links:
        if link.host is not leader:
            world.at(link.host, link.come)
    _fall(world, leader)


def fill(world: World, _: Host) -> None:
    """Disks are full, that of who leads among them: one with room leads soon, where it has enough beside it.

    Where it has not, nobody takes the lead from anybody.
    """
    world.turns(world.hosts.values(), 3)
    if (leader := world.leader()) is None or len(world.value.in_sync) < len(world.hosts):
        return
    full = [leader, *(one for one in world.hosts.values() if one is not leader and world.rng.random() < 0.5)]
    for one in full:
        one.fill()
    relieved = len(world.hosts) - len(full) >= world.min_in_sync
    chances, term = (world.answers, world.failing_syncs, world.loses), world.value.term
    world.answers, world.failing_syncs, world.loses = 1.0, 0.0, 0.0
    world.turns(world.hosts.values(), 2 * TIMES.stall // world.round)
    world.answers, world.failing_syncs, world.loses = chances
    now = world.leader()
    if relieved and (now is None or now in full):
        raise Broken(f"the disk of {leader.name}, which leads, is full, and no member with room leads instead")
    if not relieved and world.value.term != term:
        raise Broken(f"{leader.name} gave up the lead, and too few members have room for another one to confirm")
    world.seen["relieved" if relieved else "kept"] += 1
    for one in full:
        one.drain()


def darken(world: World, _: Host) -> None:
    """Those that follow lose power while some commits are on the way to their disks."""
    world.turns(world.hosts.values(), 3)
    if (leader := world.leader()) is None:
        return
    for _ in range(3):
        leader.publish()
    for link in world.links:
        if link.host is not leader and link.host.life == link.life:
            world.at(link.host, lambda link=link: link.hear(len(link.inbox)))
    for host in world.hosts.values():
        if host is not leader:
            host.stop(power=True)
    world.turns(world.hosts.values(), world.rng.randint(0, 8))


ACTIONS: dict[Action, int] = {
    tick: 30, event: 45, deliver: 60, publish: 24, roll: 5, cut: 2,
    arrive: 2, crash: 3, start: 8, snapshot: 1, revert: 1,
    stage: 3, upkeep: 7,
}  # fmt: skip
"""How often each comes."""

DISASTERS: dict[Action, int] = {
    topple: 2, lull: 2, put_back: 1, halve: 1, black_out: 2, overfill: 0, darken: 0,
    fill: 0,
}  # fmt: skip
"""How often each ends a part of a directed schedule."""

_NO_FILES: Mood = {
    roll: 1, stage: 0, upkeep: 0, snapshot: 0, revert: 0,
    put_back: 0, halve: 0,
}  # fmt: skip
LEADING: Mood = {**_NO_FILES, topple: 8}
DARK: Mood = {**_NO_FILES, topple: 0, lull: 0}
IDLING: Mood = {**_NO_FILES, publish: 8, lull: 8}
STAGING: Mood = {**_NO_FILES, stage: 14, halve: 10}
REVERTING: Mood = {**_NO_FILES, put_back: 10}
FULL: Mood = {**_NO_FILES, overfill: 10}
CROWDED: Mood = {**_NO_FILES, fill: 10}
TORN: Mood = {**_NO_FILES, darken: 10}
"""What happens oftener or not at all: a fault that takes long is found where nothing else comes in between."""


def run(world: World, steps: int) -> None:
    """So many random steps; Broken says what does not hold."""
    names, weights = zip(*_weights(world, {**ACTIONS, **world.more}), strict=True)
    hosts = list(world.hosts.values())
    for action in world.rng.choices(names, weights, k=steps):
        host = world.rng.choice(hosts)
        try:
            action(world, host)
        except OSError:
            host.stop(power=True)
        except LogDamaged as error:
            raise Broken(f"{host.name}: {error}") from error
        world.links = [one for one in world.links if not (one.closed and not one.inbox)]


def _weights(world: World, actions: Mapping[Action, int]) -> Iterable[tuple[Action, int]]:
    return ((one, world.mood.get(one, weight)) for one, weight in actions.items())


def directed(world: World, disasters: int) -> None:
    """So many times: all are level, some random steps come, and then a disaster."""
    names, weights = zip(*_weights(world, DISASTERS), strict=True)
    for disaster in world.rng.choices(names, weights, k=disasters):
        level_out(world)
        run(world, world.rng.randint(10, 100))
        disaster(world, world.rng.choice(list(world.hosts.values())))
        world.seen["disasters"] += 1


def level_out(world: World) -> None:
    """Time goes by until all have the same, or are not about to."""
    for n in range(20):
        world.turn(world.hosts.values(), publishes=n % 4 == 0)
        if n > 1 and world.level:
            return
        if world.leader() is None and n % 4 == 0:
            for host in world.hosts.values():
                host.clock += TIMES.lease // 2
