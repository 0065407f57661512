"""What can be wrong with a spool."""


class SpoolError(Exception):
    """A spool cannot be used."""


class SpoolLockedError(SpoolError):
    """Another agent uses the directory."""


class SpoolDirectoryError(SpoolError):
    """The directory cannot be created, read or written."""


class SpoolCorruptError(SpoolError):
    """The files are not a spool, or damaged beyond what losses can describe."""


class SpoolGapError(SpoolError):
    """A sequence was asked for that the spool no longer holds."""
