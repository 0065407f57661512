"""Epoch trackers in processes of their own, so that they take neither ingest's time nor its interpreter."""
