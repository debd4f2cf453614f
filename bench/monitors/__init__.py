"""Measurements of what gpuscope and other GPU monitors cost the machine that they watch."""
