"""Offline training of embeddings for new dataset types: what is wanted, what runs, what came of it."""
