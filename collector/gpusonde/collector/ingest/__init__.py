"""IngestService: streams of agents, fencing, group commit."""
