"""The fake server over HTTP: connections, exchanges, sessions, and how a script is played on them.

Owns every byte that it writes: no HTTP library stands between a script and the socket. It runs on Trio in the test's
own process, so that it can be asked and changed while it runs.
"""
