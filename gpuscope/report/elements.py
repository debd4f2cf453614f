"""Make elements of HTML and SVG, in which text can only be text.

Elements are those of :mod:`xml.etree.ElementTree`, whose serializer escapes every text and every
attribute. Nothing here takes or returns markup, so no name from outside can become any. Text is
also cleaned: control characters and marks that reorder text become visible, and what is very long
is cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Union
from xml.etree.ElementTree import Element, tostring

from ..wire.clean import clean

TEXT_CHARS = ContextVar("TEXT_CHARS", default=2000)
"""How long a text may be; the end of a longer one is cut."""
Child = Union[str, Element, None, Iterable["Child"]]


def element(tag: str, *children: Child, **attributes: object) -> Element:
    """Return an element with these children.

    Names of attributes are given with an underscore for each hyphen, and one behind a word of
    Python: ``class_``. An attribute that is None or False is left out, and True is one without a
    value.
    """
    made = Element(tag)
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        text = "" if value is True else text_of(str(value))
        made.set(name.rstrip("_").replace("_", "-"), text)
    add(made, children)
    return made


def add(parent: Element, child: Child) -> None:
    """Append a text, an element or several of them; None is nothing."""
    if child is None:
        return
    if isinstance(child, str):
        text = text_of(child)
        if len(parent):
            parent[-1].tail = (parent[-1].tail or "") + text
        else:
            parent.text = (parent.text or "") + text
    elif isinstance(child, Element):
        parent.append(child)
    else:
        for one in child:
            add(parent, one)


def raw(tag: str, content: str) -> Element:
    """Return an element for a style or a script of ours, whose content is not escaped."""
    made = Element(tag)
    made.text = content
    return made


def text_of(text: str) -> str:
    """Return a text with everything in it visible, in one line and not too long."""
    most = TEXT_CHARS.get()
    if "\n" in text or "\t" in text or "\r" in text:
        text = " ".join(text[: 4 * most].split())
    return clean(text, most)


def serialized(root: Element) -> str:
    """Return a whole page as HTML."""
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"
