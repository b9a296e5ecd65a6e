"""The settings that say which Redis is used, and how. ``rrq.settings`` adds all others."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

__all__ = ["RedisSettings"]


class RedisSettings(BaseSettings):
    """Where Redis is, how long to wait for it, and when a job in it counts as safe."""

    model_config = SettingsConfigDict(
        env_prefix="RRQ_",
        extra="ignore",
        arbitrary_types_allowed=True,
        # The text of a validation error would quote all that was given, the DSN and its password too.
        hide_input_in_errors=True,
    )

    # Redis

    redis_dsn: str = Field(
        default="redis://localhost:6379/0",
        # It may hold a password, and settings get printed.
        repr=False,
        description=(
            "Where Redis is: redis://, rediss:// (TLS), unix:// or "
            "redis+sentinel://user:password@host1:26379,host2:26379/service/db."
        ),
    )
    redis_socket_timeout_seconds: float = Field(
        default=5.0,
        gt=0,
        description=(
            "How long one command may take. Without a limit, a half-open connection to a lost node hangs for "
            "ever; five seconds is a third of the lease."
        ),
    )
    redis_connect_timeout_seconds: float = Field(
        default=5.0,
        gt=0,
        description="How long connecting may take: the address of a Pod that is gone never answers.",
    )
    redis_max_reply_bytes: int = Field(
        default=1024 * 1024 * 1024,
        ge=1,
        description=(
            "Largest reply of Redis that is read; a larger one ends the connection. A claim has the arguments of all "
            "its jobs in one reply, so raise this together with max_job_payload_bytes and worker_concurrency."
        ),
    )
    redis_max_reply_values: int | None = Field(
        default=None,
        ge=1,
        description=(
            "Most values in one reply of Redis; by default they are not counted. Set it only for a Redis that you do "
            "not trust: text in a job that looks like the header of an array is counted, too."
        ),
    )
    redis_tls_ca_file: str | None = Field(
        default=None,
        description="File with the authority that signed the certificate of Redis, for rediss://.",
    )
    redis_sentinel_hosts: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description=(
            "Sentinels as host:port, comma-separated or as JSON list. Together with "
            "redis_sentinel_service an alternative to a redis+sentinel:// DSN."
        ),
    )
    redis_sentinel_service: str | None = Field(
        default=None, description="Name under which the Sentinels know the master."
    )
    key_prefix: str = Field(
        default="rrq:",
        description=(
            "Start of every key. 'rrq:' is shared with RRQ 0.7; a hash tag such as '{rrq}:' keeps "
            "all keys in one slot, which Redis Cluster needs."
        ),
    )

    durability: Literal["server", "replica", "fsync"] = Field(
        default="server",
        description=(
            "When a job counts as enqueued: 'server' once Redis has it, which may lose the last moments in a "
            "crash or fail-over; 'replica' once a replica has it too (WAIT); 'fsync' once it is on the disk "
            "of Redis (WAITAOF from 7.2 on, or appendfsync always)."
        ),
    )
    durability_wait_seconds: float = Field(
        default=2.0,
        gt=0,
        description="How long a producer waits for the replica or the disk before it raises NotDurable.",
    )

    @field_validator("redis_sentinel_hosts", mode="before")
    @classmethod
    def _split_host_list(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):
            return json.loads(value)
        return [host.strip() for host in value.split(",") if host.strip()]

    @field_validator("key_prefix")
    @classmethod
    def _check_key_prefix(cls, value: str) -> str:
        if not value.endswith(":") or any(character.isspace() for character in value):
            raise ValueError("a key prefix has no spaces and ends in ':', such as 'shop:'")
        opening = value.find("{")
        # Redis Cluster takes "{}" for no tag at all and would spread the keys.
        if opening >= 0 and value.find("}", opening) <= opening + 1:
            raise ValueError("a hash tag needs text between its braces, such as '{shop}:'")
        return value

    @model_validator(mode="after")
    def _check_sentinel(self) -> Self:
        if self.redis_sentinel_hosts and not self.redis_sentinel_service:
            raise ValueError("redis_sentinel_hosts also needs redis_sentinel_service, the name of the master")
        return self
