"""Connections to servers, each as a Dispatcher under the SDK's session: stdio, Streamable HTTP, and HTTP+SSE."""
