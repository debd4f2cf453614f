"""The wire: what travels from probe to agent to viewer, and into recordings.

See ``docs/protocol.md``.
"""
