"""The commands, a module for each noun: ``add_NAME_options`` declares, ``run_NAME`` imports its component and runs."""
