"""Read allocator snapshots in a child process with limits, compare them and draw them as text.

The child's unpickler refuses every global. The process that shows a snapshot never unpickles: it
asks :mod:`gpuscope.snapshot.reader`, which talks to the child.
"""
