"""Run the headless collector process of a host.

Workers ask the driver and the system, one assembler that never blocks builds the frames, and
requests come on standard input.
"""
