"""Allocator snapshots: read in a capped child that knows no global, laid out as views, compared, drawn as text.

The process that shows a snapshot never unpickles: it asks :mod:`gpuscope.snapshot.reader`, which talks to a child."""
