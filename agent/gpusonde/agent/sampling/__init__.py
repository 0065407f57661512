"""When the source is read: deadlines, and how often while nothing happens."""
