"""One module per subcommand, each with ``add_parser`` and ``run``; a component is imported only by ``run``."""
