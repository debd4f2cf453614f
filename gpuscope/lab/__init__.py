"""The lab: a demo trainer that really trains, with switches. Only ``worker`` and ``models`` import torch."""
