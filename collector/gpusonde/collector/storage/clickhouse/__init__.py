"""The store on ClickHouse: one database for any number of collectors."""
