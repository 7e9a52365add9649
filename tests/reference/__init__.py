"""Plain numpy versions of every algorithm, written to read like the papers. Shared with bench/."""
