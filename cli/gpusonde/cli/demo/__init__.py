"""The demo: collector and agent on loopback, and what they find out, on one screen."""
