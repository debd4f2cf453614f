"""Processes of the system: what /proc says of them, children that answer in lines, files that are replaced whole.

Needs only the standard library, knows only the wire, and also runs in an agent on another host.
"""
