"""The engine that keeps everything in one directory: a log, Parquet segments and a SQLite catalogue."""
