"""HTTP beside gRPC: the same services as JSON, events of what changes, and the page."""
