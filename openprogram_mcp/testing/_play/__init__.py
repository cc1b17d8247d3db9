"""What the fake server does, without saying where: plain standard library, started in about 20 ms.

This package is imported in two ways and must work in both: as ``openprogram_mcp.testing._play`` for servers in memory,
and as a top-level package by ``_child.py``, which runs without site-packages. So it imports nothing of ours from
outside itself, and no module of the standard library that is slow to import.
"""
