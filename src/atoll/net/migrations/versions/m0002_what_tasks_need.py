"""What tasks need of a machine, and since when a device is there: read by the database, not by us."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """From the tables before to those after."""
    for name, kind in (("memory", sa.BigInteger()), ("disk", sa.BigInteger())):
        op.add_column("tasks", sa.Column(name, kind, nullable=False, server_default="0"))
    op.add_column("tasks", sa.Column("gpu", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("devices", sa.Column("since", sa.Double(), nullable=False, server_default="0"))
