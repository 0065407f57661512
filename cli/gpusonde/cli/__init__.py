"""The ``gpusonde`` command. Not an API: use the components' packages from Python."""
