"""The durable store: append-only log, memory tail, Parquet segments, SQLite catalogue."""
