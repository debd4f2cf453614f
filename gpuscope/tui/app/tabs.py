"""The tabs: where the class of each is, and what the first frame shows of it."""

TABS = {
    "fleet": ("hosts", "FleetPane"),
    "overview": ("overview", "OverviewPane"),
    "memory": ("memory", "MemoryPane"),
    "time": ("time", "TimePane"),
    "doctor": ("doctor", "DoctorPane"),
    "lab": ("lab", "LabPane"),
    "log": ("log", "LogPane"),
}
"""Tab → its folder, and the class in ``pane.py`` there; imported at the first visit."""
PANELS = {
    "fleet": ("Hosts",),
    "overview": ("Jobs", "Devices"),
    "memory": ("Where the bytes are",),
    "time": ("Where the time goes",),
    "doctor": ("Findings",),
    "lab": ("Lab",),
    "log": ("Log",),
}
"""What the first frame shows of a tab."""
