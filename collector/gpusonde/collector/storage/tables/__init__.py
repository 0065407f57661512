"""The SQLite catalogue and its tables."""
