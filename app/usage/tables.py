"""The tables of usage in SQL."""

from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, String, Table

VERSION = 1
TABLES = MetaData()

SCHEMA = Table("xylem_usage_schema", TABLES, Column("version", Integer, primary_key=True))


def _texts(*names: str) -> list[Column[str]]:
    return [Column(name, String, nullable=False) for name in names]


def _numbers(*names: str) -> list[Column[float]]:
    return [Column(name, Double, nullable=False) for name in names]


# As `usage.record.UsageRecord`, and what it cost by the prices when it was written.
USAGE = Table(
    "xylem_usage",
    TABLES,
    Column("id", String, primary_key=True),
    Column("epoch", Integer, nullable=False),
    *_numbers("at"),
    Column("minute", BigInteger, nullable=False),  # `at`, in whole minutes
    *_texts("tenant", "key", "key_name", "model", "task", "outcome"),
    *(Column(name, BigInteger, nullable=False) for name in ("prompt_tokens", "cached_tokens", "completion_tokens")),
    Column("images", Integer, nullable=False),
    *_numbers("engine_s", "placement_s", "queue_s", "prefill_s", "handover_s", "decode_s"),
    Column("ttft_s", Double),
    *_numbers("duration_s"),
    Column("attempts", Integer, nullable=False),
    *_texts("batch", "x_request_id", "parent"),
    *_numbers("cost"),
)
Index("xylem_usage_by_time", USAGE.c.at)
Index("xylem_usage_by_tenant", USAGE.c.tenant, USAGE.c.at)
