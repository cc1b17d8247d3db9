"""The official conformance suite of MCP against this package: ``python -m tests.conformance``, or ``make conformance``.

The suite (npm, pinned) starts a server for each scenario and runs our client against it: ``driver``, a program over
:func:`openprogram_mcp.open_manager` such as any user of the package could write. What the suite has checked is read
from the files it leaves, and written as the table in docs/reference/conformance.md.
"""
