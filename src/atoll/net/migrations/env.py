"""How Alembic reaches a coordinator's tables: on the connection that it is given, within its transaction."""

from alembic import context

from atoll.net.database import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite changes a table by making it anew
)
context.run_migrations()
