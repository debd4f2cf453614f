"""Words, cells and rows that several tabs show alike: of a device, a job, a step, an event."""
