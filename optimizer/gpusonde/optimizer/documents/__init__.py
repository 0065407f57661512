"""Problem, plan and solution files: plain JSON or TOML, versioned, of bounded size."""
