"""From readings to the records of the spool."""
