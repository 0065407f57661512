"""What both daemons need of their surroundings: systemd, TLS, logs, self metrics."""
