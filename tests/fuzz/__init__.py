"""Any bytes whatever, in any pieces, on the wire of a stdio connection: ``python -m tests.fuzz --seconds 60``."""
