"""Processes that answer questions, each of which can be ended: what is asked may be hostile, or take for ever."""
