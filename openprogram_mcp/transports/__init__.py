"""Connections to servers, each as a Dispatcher under the SDK's session: stdio now, HTTP and SSE to come."""
