"""The terminal interface.

Everything here may load textual; nothing here may load torch or pynvml.
"""
