"""This module makes Textual ask for a widget's natural height again."""

from __future__ import annotations

from textual.widget import Widget


def height_changed(widget: Widget) -> None:
    """Have the next layout ask the widget for its height.

    Textual keeps a widget's size by the count of its layout requests, and a request that comes
    before an earlier one is served does not count. Where another widget's layout falls between
    the two, the second height would never be asked for: text stays cut off or has blank rows.
    """
    widget.refresh(layout=True)
    widget._layout_updates += 1
