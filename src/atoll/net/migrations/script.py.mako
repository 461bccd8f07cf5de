"""${message.strip().rstrip(".")}."""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = "${up_revision}"
down_revision = ${repr(down_revision).replace("'", '"')}


def upgrade() -> None:
    """From the tables before to those after."""
    ${upgrades}
