"""Who may ask the collector for what, and how often."""
