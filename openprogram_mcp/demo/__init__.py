"""The demonstration server: ``python -m openprogram_mcp.demo`` serves MCP over stdio, in both eras of the protocol.

It shows what a server can offer, one small thing of each kind, and is what a worker without a configuration runs. It
imports nothing but the standard library, and little of that: it answers some 50 ms after it was started, a tenth of
what importing the SDK's server alone takes. Its conformance is tested with the SDK's own client.
"""
