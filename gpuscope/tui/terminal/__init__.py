"""This package is all that lies between the screens and the terminal.

It alone uses private names of Textual, and this is the list of them.

Textual is bound to one major version (``>=8.2,<9``). Whoever raises that bound goes through this
list first:

- ``textual._compositor.ChopsUpdate``, ``LayoutUpdate`` and ``CompositorUpdate``
  (``minimal_updates``): what an update draws, so that only the cells are sent that the terminal
  does not show yet.
- ``App._display`` (``minimal_updates`` overrides it, ``direct_paint`` calls it): where an update
  goes to the terminal.
- ``App._batch_count``, ``App._running`` and ``App._driver`` (``minimal_updates``): whether the app
  draws now.
- ``Screen._compositor.visible_widgets`` (``direct_paint``): which widgets are seen whole, with
  nothing above them.
- ``Screen._compositor.render_strips`` (``copying``): the lines on screen, to copy them as text or
  save them as a page.
- ``Screen._compositor.render_update`` and ``App._background_screens`` (``picture``): the screens
  that are seen, as Textual's export of a picture takes them.
- ``Screen._layout_required``, ``Screen._dirty_widgets``, ``Widget._layout_required`` and
  ``Widget._repaint_required`` (``direct_paint``): whether the compositor draws the widget soon
  anyway.
- ``Widget._layout_updates`` (``natural_height``): counts a layout request that would be forgotten.
- ``Widget._styles_cache._dirty_lines`` (``direct_paint``): lines that went past the compositor
  must not be reused by it.
- ``App._handle_exception`` (``soon``): an error in a call of the event loop ends the app as one in
  the handler of a message does.
- ``Screen._refresh_layout`` (``soon``): gives the widgets of a tab their sizes before its first
  frame.
- The slots of ``Strip`` (``light_strip`` fills them all): its pieces, their cells, and its caches.
- ``textual._xterm_parser.XTermParser`` and ``textual._parser.ParseError`` (``driver``): bytes
  become events.
- ``LinuxDriver._app``, ``_file``, ``_loop`` and ``_debug`` (``driver``): whose input it is, where
  output goes, where threads post to.
- ``App._exit``, ``App._check_bindings``, ``Screen._mounted_event`` and ``Widget._forward_event``
  (``typeahead``): each key is answered before the next one is looked at.
"""
