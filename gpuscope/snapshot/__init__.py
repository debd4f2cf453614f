"""Reads allocator snapshots in a capped child, compares them and draws them as text.

The child knows no global. The process that shows a snapshot never unpickles: it asks
:mod:`gpuscope.snapshot.reader`, which talks to a child.
"""
