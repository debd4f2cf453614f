"""What /proc says of processes, children that answer in lines, and files replaced whole.

The package needs only the standard library and ``gpuscope.wire``, because an agent on another host
uses it too.
"""
