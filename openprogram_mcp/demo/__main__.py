"""``python -m openprogram_mcp.demo``."""

from ._server import main

if __name__ == "__main__":
    main()
