"""Signing in to servers: what is kept of it, how it is used and renewed, and how it is had from a human."""
