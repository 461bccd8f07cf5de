"""The tables of the first coordinators."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """From the tables before to those after."""
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("public", sa.String(length=64), nullable=False),
        sa.Column("nickname", sa.String(length=120), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_accounts_number", "accounts", ["number"])

    op.create_table(
        "blobs",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("account", sa.String(length=64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.create_table(
        "happenings",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_happenings_kind", "happenings", ["kind"])

    op.create_table(
        "ledger_balances",
        sa.Column("account", sa.String(length=64), nullable=False),
        sa.Column("bucket", sa.String(length=16), nullable=False),
        sa.Column("lineage", sa.String(length=120), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account", "bucket", "lineage"),
    )
    op.create_table(
        "ledger_cursor",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("below", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_table(
        "log_entries",
        sa.Column("index", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("leaf", sa.LargeBinary(length=32), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("index"),
    )
    op.create_index("ix_log_entries_kind", "log_entries", ["kind"])

    op.create_table(
        "nonces",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("nonce", sa.String(length=64), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", "nonce"),
    )
    op.create_index("ix_nonces_expires", "nonces", ["expires"])

    op.create_table(
        "outages",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "paths",
        sa.Column("path", sa.String(length=200), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("path"),
    )
    op.create_table(
        "quotas",
        sa.Column("account", sa.String(length=64), nullable=False),
        sa.Column("hour", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account", "hour"),
    )
    op.create_table(
        "settings",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=300), nullable=False),
        sa.Column("copy", sa.Integer(), nullable=False),
        sa.Column("unit", sa.JSON(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=120), nullable=False),
        sa.Column("stage", sa.String(length=120), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("heard", sa.Double(), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=False),
        sa.Column("candidate", sa.String(length=64), nullable=False),
        sa.Column("failed", sa.JSON(), nullable=False),
        sa.Column("micro", sa.JSON(), nullable=True),
        sa.Column("about", sa.String(length=64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key", "copy"),
    )
    op.create_index("ix_tasks_about", "tasks", ["about"])
    op.create_index("ix_tasks_digest", "tasks", ["digest"])
    op.create_index("tasks_state", "tasks", ["state", "id"])

    op.create_table(
        "devices",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("account", sa.String(length=64), nullable=False),
        sa.Column("public", sa.String(length=64), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("seen", sa.Double(), nullable=False),
        sa.Column("capabilities", sa.JSON(), nullable=False),
        sa.Column("speed", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["account"], ["accounts.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_devices_account", "devices", ["account"])
    op.create_index("ix_devices_seen", "devices", ["seen"])

    op.create_table(
        "ledger_events",
        sa.Column("event", sa.String(length=200), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("submission", sa.String(length=64), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["index"], ["log_entries.index"]),
        sa.PrimaryKeyConstraint("event"),
        sa.UniqueConstraint("index"),
    )
    op.create_index("ix_ledger_events_submission", "ledger_events", ["submission"])

    op.create_table(
        "leases",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("task", sa.Integer(), nullable=False),
        sa.Column("account", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("unit", sa.JSON(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("heard", sa.Double(), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=False),
        sa.Column("expected", sa.Double(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("head", sa.String(length=128), nullable=False),
        sa.ForeignKeyConstraint(["account"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["device"], ["devices.id"]),
        sa.ForeignKeyConstraint(["task"], ["tasks.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_leases_account", "leases", ["account"])
    op.create_index("ix_leases_task", "leases", ["task"])
    op.create_index("leases_account", "leases", ["account", "state"])
    op.create_index("leases_device", "leases", ["device", "state"])

    op.create_table(
        "ledger_postings",
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("account", sa.String(length=64), nullable=False),
        sa.Column("bucket", sa.String(length=16), nullable=False),
        sa.Column("lineage", sa.String(length=120), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["index"], ["ledger_events.index"]),
        sa.PrimaryKeyConstraint("index", "line"),
    )
    op.create_index("ledger_postings_account", "ledger_postings", ["account", "bucket", "lineage"])

    op.create_table(
        "submissions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("lease", sa.String(length=64), nullable=False),
        sa.Column("task", sa.Integer(), nullable=False),
        sa.Column("account", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("content", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("price", sa.BigInteger(), nullable=False),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("canonical", sa.Boolean(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("decided", sa.Double(), nullable=True),
        sa.Column("statement", sa.Integer(), nullable=True),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["account"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["device"], ["devices.id"]),
        sa.ForeignKeyConstraint(["lease"], ["leases.id"]),
        sa.ForeignKeyConstraint(["task"], ["tasks.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_submissions_account", "submissions", ["account"])
    op.create_index("ix_submissions_lease", "submissions", ["lease"])
    op.create_index("ix_submissions_number", "submissions", ["number"])
    op.create_index("ix_submissions_state", "submissions", ["state"])
    op.create_index("ix_submissions_task", "submissions", ["task"])
    for name in ("log_entries", "ledger_events", "ledger_postings"):
        _append_only(name)


def _append_only(name: str) -> None:
    """Let the database itself refuse to change or remove rows, whoever asks."""
    if op.get_bind().dialect.name == "sqlite":
        for action in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {name}_no_{action.lower()} BEFORE {action} ON {name} "
                f"BEGIN SELECT RAISE(ABORT, '{name} is append-only'); END"
            )
        return
    op.execute(
        f"CREATE OR REPLACE FUNCTION {name}_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{name} is append-only'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {name}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {name} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {name}_refuse()"
    )
