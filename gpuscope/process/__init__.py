"""What /proc says of processes, children that answer in lines, and files replaced whole.

Needs only the standard library, knows only the wire, and also runs in an agent on another host.
"""
