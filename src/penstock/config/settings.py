"""The settings file as one frozen typed value: every key with its default, its unit and a sentence.

Owns names, types and which settings exclude each other.  Reading files, the environment and the wording of mistakes are
`config.load`'s; the settings of a queue are `config.queue_settings`'.  Durations are microseconds and sizes bytes
inside, text with a unit in the file.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, SecretStr, StrictBool, StrictFloat, StrictInt, field_validator, model_validator

from penstock.config.action_section import ActionSection
from penstock.config.links import LinkSection
from penstock.config.pipeline_section import Pipeline, Spark
from penstock.config.queue_values import COUNT_MAX
from penstock.config.sections import (
    MIB,
    BeforeLogin,
    ClusterSection,
    Duration,
    File,
    Listeners,
    Name,
    Network,
    Section,
    Size,
    TlsSection,
)
from penstock.config.vhost_sections import (
    AddressSection,
    Binding,
    ConflatedSection,
    EntitlementSection,
    Exchange,
    OperatorPolicySection,
    PermissionSection,
    PolicySection,
    Queue,
    TopicPermissionSection,
    TopicSection,
    Vhost,
    ViewSection,
)
from penstock.errors import InvalidArgument, shown, told_as
from penstock.records.event_actions import Action
from penstock.records.password_hashes import IN_SETTINGS, check_hash
from penstock.records.rights import Tag
from penstock.units import format_duration

FOREVER = "forever"
"""A retention that keeps everything."""


class Server(Section):
    """`[server]`"""

    name: Name = "penstock-1"
    """Name of this instance, unique in its group."""
    group: Name = "main"
    """Name of the group of sites it belongs to: links name groups."""
    data: File = "./data"
    """Folder of the log and of everything that must survive."""
    sync: Literal["commit", "interval", "off"] = "commit"
    """When a publish is confirmed: after its bytes are on disk, or earlier and at your risk: a power cut may then take
    what was confirmed since the last sync."""
    memory: Size = Field(default=512 * MIB, ge=8 * MIB)
    """Budget for bodies and buffers; positions and indexes come on top. In a cgroup, as of a container, or on a machine
    that has no room for it the server takes less, and says so."""
    doors: Literal["auto"] | Annotated[StrictInt, Field(ge=0, le=16)] = "auto"
    """Processes that take AMQP clients; 0: the server's own does, and HTTP's clients, too, who have a process
    otherwise. `auto` is none for AMQP on up to two cores, else one less than there are cores, at most 4; cores that the
    server may use, by its affinity and the quota of its cgroup."""
    allow_execute: StrictBool = False
    """Whether actions may run programs of the machine."""
    open_metrics: StrictBool = False
    """Whether /metrics/per-object, which names queues, streams and pipelines, asks for no login. Otherwise it is for
    users with the tag "monitoring"."""
    trusted_proxies: tuple[Network, ...] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` says who asks over HTTP; nobody else's is believed."""
    loopback_users: tuple[Name, ...] = ("guest",)
    """Names that log in from this machine alone, wherever such a user is defined; a `[[user]]` may say otherwise."""


class Amqp(Section):
    """`[amqp]`"""

    heartbeat: Duration = 60_000_000
    """Heartbeat asked of clients, in whole seconds, 65535 at most; 0s for none."""
    frame_max: Size = Field(default=131_072, ge=4096, le=16 * MIB)
    """Largest frame, agreed with each client."""
    channel_max: StrictInt = Field(default=2047, ge=1, le=65_535)
    """Channels a connection may open."""
    message_max: Size = Field(default=16 * MIB, ge=1, le=512 * MIB)
    """Largest body of a message."""

    @field_validator("heartbeat")
    @classmethod
    def _in_seconds(cls, value: int) -> int:
        """AMQP agrees on seconds, in two bytes."""
        if value % 1_000_000 or value > 65_535_000_000:
            raise ValueError(f"must be whole seconds, 65535 at most, or 0s for none, not {format_duration(value)}")
        return value


class ArchiveRetention(Section):
    """`retention` of `archive`: when both are set, whichever is met first."""

    age: Duration | None = Field(default=None, ge=0)
    """How long settled messages stay readable."""
    bytes: Size | None = Field(default=None, ge=0)
    """How much log is kept before settled messages go."""


class Retention(ArchiveRetention):
    """`retention` of `[log]`: of what is set, whichever is met first; `"forever"` keeps all.

    With nothing set a data folder goes by the default of the version that made it: see `server.upkeep.retention`.
    """

    share: StrictFloat | None = Field(default=None, gt=0, le=1)
    """The part of the room on its disk, which is what it takes and what is free, that the log may take before settled
    messages go; 1 is all of it."""

    @model_validator(mode="before")
    @classmethod
    def _in_a_word(cls, value: object) -> object:
        if value == FOREVER:
            return {"share": 1}
        if isinstance(value, str):
            raise ValueError(f'{shown(value)} is no retention: give "{FOREVER}", or a table with age, bytes or share')
        return value


class ArchiveSection(Section):
    """`archive` of `[log]`: closed segments as Parquet, and retention waits for it.  Unset: there is none."""

    folder: File = "archive"
    """Where the files go: below the data folder, or a whole path."""
    shared: StrictBool = False
    """With `[cluster]`: all members see the same folder, as a whole path that they share."""
    compression: Literal["zstd", "snappy", "none"] = "zstd"
    """How the files are compressed."""
    topics: StrictInt = Field(default=64, ge=0, le=1000)
    """How many topics of a segment have folders of their own; the others share one."""
    file_bytes: Size = Field(default=128 * MIB, ge=64 * 1024, le=4096 * MIB)
    """Small files of a day are merged up to this size."""
    retention: ArchiveRetention | None = None
    """How long archived days stay, and how many bytes of them.  Default: for ever."""


class LogSection(Section):
    """`[log]`"""

    segment: Size = Field(default=256 * MIB, ge=64 * 1024, le=1024 * MIB)
    """Size at which a new file begins."""
    retention: Retention = Retention(age=None, bytes=None, share=None)
    """When settled messages that nobody needs leave the disk; "forever": never.  Unset: when the log takes more than
    half of the room on its disk, that is, more than is free; never in data folders of versions that kept everything."""
    archive: ArchiveSection | None = None
    """Keep closed segments as Parquet files; retention moves on after that alone."""
    compress_cold: StrictBool = False
    """Compress (zstd) segments that are closed, delivered and not among the newest."""
    sync_interval: Duration = Field(default=10_000, gt=0)
    """Time between syncs when `sync` is "interval"."""
    ack_sync: Duration = Field(default=100_000, gt=0)
    """Acknowledgements are on disk within this time; what a crash takes of them is delivered again."""
    publisher_expiration: Duration | None = Field(default=None, gt=0)
    """A publisher's numbers are forgotten when nothing came of it for so long."""
    checkpoint_bytes: Size = Field(default=64 * MIB, ge=1)
    """Log written between checkpoints, in bytes: about so much a start has to read."""
    checkpoint_records: StrictInt = Field(default=1_000_000, ge=1, le=1_000_000_000)
    """Log written between checkpoints, in records."""


class SqlSection(Section):
    """`[sql]`: what statements may take from the server's machine."""

    memory: Size = Field(default=256 * MIB, ge=32 * MIB)
    """What one statement may keep in memory, beside `server.memory`."""
    spill: Size = Field(default=10 * 1024 * MIB, ge=0)
    """What one statement may put aside in the data folder while it runs."""
    at_once: StrictInt = Field(default=2, ge=1, le=64)
    """Statements that run at once; others wait."""
    timeout: Duration = Field(default=300_000_000, gt=0)
    """A statement that takes longer is ended."""


class User(Section):
    """`[[user]]`.  Without any there is `guest` with password `guest`, from loopback only."""

    name: Name
    """Name to log in with."""
    password: SecretStr | None = None
    """The password, or use password_file."""
    password_file: File | None = None
    """File whose first line is the password."""
    password_hash: SecretStr | None = None
    """Or its hash: of Argon2id as text that begins with $argon2id$, or as RabbitMQ keeps it, base64 of a salt of four
    bytes and the digest."""
    hashing: Literal["sha256", "sha512", "md5", "argon2id"] = "sha256"
    """How password_hash was made."""
    tags: tuple[Tag, ...] = ()
    """What else the user may do: "administrator" reads records of all kinds, has the whole log backed up, verified and
    compacted, and administers users, vhosts and limits over HTTP; "monitoring" sees connections of others there,
    "policymaker" sets policies, and each of them includes "management": declaring, deleting, publishing and getting
    over HTTP."""
    loopback_only: StrictBool | None = None
    """Refuse this user from other machines; unset: whether `loopback_users` of `[server]` names it."""
    max_connections: StrictInt | None = Field(default=None, ge=0, le=COUNT_MAX)
    """AMQP connections that the user may have."""
    max_channels: StrictInt | None = Field(default=None, ge=0, le=COUNT_MAX)
    """Channels of all of them."""

    @model_validator(mode="after")
    def _one_password(self) -> User:
        if sum(one is not None for one in (self.password, self.password_file, self.password_hash)) != 1:
            raise ValueError("a user has either a password or a password_file, or a password_hash")
        if self.password is not None and not self.password.get_secret_value():
            raise ValueError("the password is empty, and nobody logs in with one that is")
        if self.password_hash is not None:
            with told_as(ValueError, instead=InvalidArgument):
                check_hash(self.password_hash.get_secret_value(), IN_SETTINGS[self.hashing], IN_SETTINGS.values())
        return self


GUEST = User(
    name="guest",
    password=SecretStr("guest"),
    password_file=None,
    tags=("administrator",),
    loopback_only=True,
)


class Settings(Section):
    """The whole file."""

    server: Server = Field(default_factory=Server)
    """The instance."""
    listen: Listeners = Field(default_factory=Listeners)
    """Its addresses."""
    before_login: BeforeLogin = Field(default_factory=BeforeLogin)
    """What a door allows who has not logged in."""
    tls: TlsSection = Field(default_factory=TlsSection)
    """The certificate of the doors with TLS.  Files whose content changes are taken up while the server runs."""
    amqp: Amqp = Field(default_factory=Amqp)
    """Limits of the AMQP door."""
    log: LogSection = Field(default_factory=LogSection)
    """The log."""
    cluster: ClusterSection | None = None
    """Servers that keep one log together: see cluster-of-servers.md.  Unset: it is alone."""
    link: tuple[LinkSection, ...] = ()
    """Other sites that messages go to, with which queues are shared: see links.md."""
    sql: SqlSection = Field(default_factory=SqlSection)
    """What statements of `penstock query` may take."""
    spark: Spark = Field(default_factory=Spark)
    """How pipelines run.  `penstock up` takes up a change and starts its pipelines again where they were; `checkpoints`
    alone waits for its restart."""
    user: tuple[User, ...] = ()
    """Who may log in.  More are added while it runs: `penstock user add`, and over HTTP."""
    entitlement: tuple[EntitlementSection, ...] = ()
    """What users may read and write."""
    permission: tuple[PermissionSection, ...] = ()
    """What users may do in a vhost.  For users of the file; `penstock user set-permissions` is for those added while it
    runs."""
    topic_permission: tuple[TopicPermissionSection, ...] = ()
    """Permissions narrowed by routing key."""
    vhost: tuple[Vhost, ...] = ()
    """Vhosts beside `/`, and limits of vhosts.  What the file names is applied at each start; what leaves it
    stays.  While it runs: `penstock vhost`."""
    exchange: tuple[Exchange, ...] = ()
    """Exchanges declared at start.  What the file names is applied at each start; what leaves it stays.  While it runs:
    `penstock exchange`."""
    topic: tuple[TopicSection, ...] = ()
    """Topics declared at start.  What the file names is applied at each start; what leaves it stays.  While it runs:
    `client.declare_topic`."""
    queue: tuple[Queue, ...] = ()
    """Queues declared at start.  What the file names is applied at each start, which says what that made another: what
    commands altered of such a queue ends with the next start.  What leaves the file stays.  While it runs: `penstock
    queue`."""
    binding: tuple[Binding, ...] = ()
    """Bindings declared at start.  What the file names is applied at each start; what leaves it stays.  While it runs:
    `penstock binding`."""
    policy: tuple[PolicySection, ...] = ()
    """Settings for many queues at once.  Applied at each start, and taken back when they leave the file.  While it
    runs: `penstock policy`."""
    operator_policy: tuple[OperatorPolicySection, ...] = ()
    """Limits beside all policies.  As policies are.  While it runs: `penstock operator-policy`."""
    address: tuple[AddressSection, ...] = ()
    """Defaults of queues by their address.  Applied at each start, and taken back when they leave the file."""
    action: tuple[ActionSection, ...] = ()
    """What to do when something happens."""
    view: tuple[ViewSection, ...] = ()
    """Views of queues, topics and other views.  What leaves the file is gone with the next start."""
    conflated_topic: tuple[ConflatedSection, ...] = ()
    """Topics and views slowed down."""
    pipeline: tuple[Pipeline, ...] = ()
    """Spark pipelines that `penstock up` runs.  `penstock up` takes up changes while it runs."""

    _origins: dict[str, str] = PrivateAttr(default_factory=dict[str, str])

    @property
    def users(self) -> tuple[User, ...]:
        """Who may log in: the users of the file, or guest; whether from other machines too is settled."""
        loopback = self.server.loopback_users
        return tuple(
            one if one.loopback_only is not None else one.model_copy(update={"loopback_only": one.name in loopback})
            for one in self.user or (GUEST,)
        )

    @property
    def topics(self) -> tuple[TopicSection, ...]:
        """The declared topics, and those with a key that pipelines write and no `[[topic]]` names."""
        named = {(one.vhost, one.exchange, one.name): one for one in self.topic}
        for pipeline in self.pipeline:
            for to in pipeline.to:
                if to.view is not None and to.keys:
                    made = TopicSection(name=to.view, exchange=to.exchange, vhost=to.vhost, key=to.keys)
                    named.setdefault((to.vhost, to.exchange, to.view), made)
        return tuple(named.values())

    @property
    def vhosts(self) -> tuple[str, ...]:
        """Names of all vhosts, `/` first."""
        return ("/", *(vhost.name for vhost in self.vhost if vhost.name != "/"))

    @property
    def site(self) -> str:
        """What other sites know this server as, or the cluster that it is in."""
        cluster = self.cluster
        return self.server.name if cluster is None or cluster.name is None else cluster.name

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions as the core takes them."""
        return tuple(action.action(number) for number, action in enumerate(self.action, 1))

    def origin(self, place: str) -> str:
        """Where the value of `section.key` came from: `default`, a file, a variable or an option.

        Values in lists of tables are `queue.0.max_cancels`.  A file of others is named with the line.
        """
        return self._origins.get(place, "default")

    def with_origins(self, origins: dict[str, str]) -> Settings:
        """The same, remembering where its values came from."""
        copy = self.model_copy()
        copy._origins = dict(origins)
        return copy

    def with_memory(self, budget: int, origin: str) -> Settings:
        """The same with another `server.memory`."""
        server = self.server.model_copy(update={"memory": budget})
        return self.model_copy(update={"server": server}).with_origins({**self._origins, "server.memory": origin})
