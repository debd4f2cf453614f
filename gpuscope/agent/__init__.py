"""The headless collector process: workers that ask, one assembler that never does, requests on standard input."""
