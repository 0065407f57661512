"""What is written about one run, for people and other tools: a page, and a trace for Perfetto."""
