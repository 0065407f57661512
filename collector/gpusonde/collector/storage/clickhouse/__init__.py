"""The store on ClickHouse: one database for any number of collectors."""

import re

# It stands in statements as it is, where nothing can be bound.
DATABASE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
