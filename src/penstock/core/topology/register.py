"""The queues that there are: by name, by number, by the connection that alone may use them.

A queue is put here when its record is written, and routing learns of it at the same time.  Nothing is decided here.
"""

from __future__ import annotations

from penstock.core.actions.rules import Rules
from penstock.core.publishing.waiting import PREFIX, is_onward
from penstock.core.queue.parts import Declared
from penstock.core.queue.view import Queue
from penstock.core.sizes.sizes import Sizes
from penstock.core.state.durable import QueueState
from penstock.core.topology.interning import Interning
from penstock.core.topology.refusals import locked
from penstock.core.topology.routing import Router
from penstock.core.topology.topology import Topology, canonical_table
from penstock.errors import NotFound
from penstock.records.queue_settings import QueueSettings, Ruling

SETTINGS_MOST = 1024
"""Different settings that are remembered, so that queues declared alike share one object."""


class Register:
    """All queues of an instance."""

    def __init__(self, topology: Topology, router: Router, interning: Interning, rules: Rules, sizes: Sizes) -> None:
        self._topology = topology
        self._router = router
        self._interning = interning
        self._rules = rules
        self._sizes = sizes
        self.queues = router.queues  # the one table by name
        self.by_id: dict[int, Queue] = {}  # ascending
        self.exclusive: dict[object, dict[int, Queue]] = {}  # by connection
        self._settings: dict[QueueSettings, QueueSettings] = {}  # equal ones are one object
        self._rulings: dict[Ruling, Ruling] = {}  # as well
        self._declared: dict[tuple[object, ...], Declared] = {}  # as well

    def make(self, state: QueueState, exclusive_to: object | None) -> Queue:
        """The queue of a state, without messages, in the register; its record is written already."""
        actions = self._rules.on_queue(state.vhost, state.name)
        if len(self._settings) >= SETTINGS_MOST:
            self._settings.clear()
        onward = state.name.removeprefix(PREFIX) if is_onward(state.name, state.arguments) else None
        queue = Queue(
            state.id, state.vhost, state.name, self._settings.setdefault(state.settings, state.settings), state.durable,
            exclusive_to, state.auto_delete, state.arguments, () if onward is not None else actions, self._sizes,
            onward,
        )  # fmt: skip
        queue.ruling = self.shared(state.ruling)
        if exclusive_to is None and not queue.actions:
            queue.declared = self._alike(queue.declared)
        self.by_id[queue.id] = queue
        if exclusive_to is not None:
            self.exclusive.setdefault(exclusive_to, {})[queue.id] = queue
        self._topology.version += 1
        self._router.add(queue)
        return queue

    def _alike(self, declared: Declared) -> Declared:
        """Equal ones as one object, of those that nobody is the owner of and no action asks about."""
        key = (
            declared.vhost,
            declared.durable,
            declared.auto_delete,
            declared.onward,
            canonical_table(declared.arguments),
        )
        if len(self._declared) >= SETTINGS_MOST:
            self._declared.clear()
        return self._declared.setdefault(key, declared)

    def shared(self, ruling: Ruling | None) -> Ruling | None:
        """Equal rulings as one object."""
        if ruling is None:
            return None
        if len(self._rulings) >= SETTINGS_MOST:
            self._rulings.clear()
        return self._rulings.setdefault(ruling, ruling)

    def queue(self, vhost: str, name: str, by: object | None = None) -> Queue:
        """A queue that `by` may use.  NotFound, or ResourceLocked when it is exclusive to somebody else."""
        queue = self.queues.find(vhost, name)
        if queue is None:
            raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
        if queue.exclusive_to is not None and queue.exclusive_to is not by:
            raise locked(vhost, name)
        return queue

    def forget(self, queue: Queue) -> None:
        """Take a queue out of the register and of routing."""
        self._router.remove(queue)
        self.by_id.pop(queue.id, None)
        if (own := self.exclusive.get(queue.exclusive_to)) is not None:
            own.pop(queue.id, None)
            if not own:
                del self.exclusive[queue.exclusive_to]
        self._interning.forget_queue(queue.id)
        self._topology.version += 1
